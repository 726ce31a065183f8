package codertest

import (
	"fmt"
	"reflect"
	"time"
)

// Fill sets all fields of what p points to, also the unexported ones, to values that differ from field to field and are
// the same in each run. Lists and maps get two elements. Interfaces and functions keep their values.
func Fill(p any) {
	n := 0
	fill(reflect.ValueOf(p).Elem(), &n)
}

func fill(v reflect.Value, n *int) {
	*n++
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(int64(*n))
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(*n))
	case reflect.String:
		v.SetString(fmt.Sprintf("text %d", *n))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), n)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fillItems(v, n)
	case reflect.Array:
		fillItems(v, n)
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for range 2 {
			key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			fill(key, n)
			fill(value, n)
			v.SetMapIndex(key, value)
		}
	case reflect.Struct:
		fillStruct(v, n)
	}
}

func fillItems(v reflect.Value, n *int) {
	for i := range v.Len() {
		fill(v.Index(i), n)
	}
}

func fillStruct(v reflect.Value, n *int) {
	if v.Type() == reflect.TypeFor[time.Time]() {
		v.Set(reflect.ValueOf(time.Unix(int64(*n), 0).UTC()))
		return
	}
	for i := range v.NumField() {
		field := v.Field(i)
		fill(reflect.NewAt(field.Type(), field.Addr().UnsafePointer()).Elem(), n)
	}
}
