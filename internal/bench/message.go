package bench

// memory is a message in memory. Blocks do not overlap, so copies need no lock.
type memory struct {
	block uint64
	data  []byte
}

// ReadBlock copies a block out.
func (m *memory) ReadBlock(i uint64, buf []byte) error {
	copy(buf, m.data[i*m.block:])
	return nil
}

// WriteBlock copies a block in.
func (m *memory) WriteBlock(i uint64, buf []byte) error {
	copy(m.data[i*m.block:], buf)
	return nil
}
