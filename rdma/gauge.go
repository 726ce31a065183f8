package rdma

// Gauge is a device that also tells how much its link carries. A caller looks for it by a type assertion.
type Gauge interface {
	// Carried is how many bytes the machine's interfaces that the device uses have sent and received in all, for
	// anybody. ok is false if that is not known.
	Carried() (sent, received uint64, ok bool)
}
