// Package doctor looks at a machine and says which parts of rdmcfs work on it, which do not, why, and what that costs.
//
// Each check is a function that looks at the machine through a Host and returns findings. So tests can give checks a
// made-up machine. Nothing is changed on the machine.
//
//	for _, f := range doctor.Examine(doctor.ThisHost(), "/var/lib/rdmcfs") {
//		fmt.Println(f.Level, f.Topic, f.Text, f.Advice)
//	}
package doctor
