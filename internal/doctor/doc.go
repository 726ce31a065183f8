// Package doctor looks at a machine and says what of rdmcfs works on it, what is off, why, and what that costs.
//
// Each check is a function from a Host, which is how the machine is looked at, to findings. So checks can be
// tested with made-up machines. Nothing is changed on the machine.
//
//	for _, f := range doctor.Examine(doctor.ThisHost(), "/var/lib/rdmcfs") {
//		fmt.Println(f.Level, f.Topic, f.Text, f.Advice)
//	}
package doctor
