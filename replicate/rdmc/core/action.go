package core

// ActionKind says what the shell must do. Sink, Source and the application are the shell's.
type ActionKind uint8

// The actions. Each names only the fields of Action that it needs.
const (
	ActPostRecv  ActionKind = iota + 1 // post the slot as a receive on the lane
	ActSend                            // send the slot's first length bytes on the lane
	ActIncoming                        // a message of length size begins that was not announced
	ActLoad                            // read the block into the slot, then call BlockLoaded
	ActStore                           // write the slot's block to the sink, then call BlockStored
	ActControl                         // encode and send the lane's control state, then call ControlSent
	ActStored                          // the message is stored here
	ActDone                            // the message has ended here
	ActFailed                          // the group has failed
	ActSettled                         // all neighbours that can be reached know that the group failed or closed
	ActClosed                          // the group is closed: everything was delivered everywhere
	ActSmallLoad                       // read small message number seq into the slot, then call SmallLoaded with block
	ActSmallSend                       // send a small message on the lane, then call SmallSent with block
	ActSmallHand                       // give a small message to the application, then call SmallTaken with block
	ActSmallPost                       // post the slot as a receive on the lane's control queue pair
)

// Action is one thing for the shell to do.
type Action struct {
	Kind   ActionKind
	Lane   int
	Slot   int
	Seq    uint64 // number of the message
	Block  uint64 // or the count of the small message
	Length int    // of the block or small message on the wire in bytes, trailer included
	Blocks uint32 // of the message that move
	Size   uint64 // of the message in bytes
	Rides  bool   // for the shell: a small message takes the control message along, and that goes with the small message
}
