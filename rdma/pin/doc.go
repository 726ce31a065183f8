// Package pin registers memory for transfers in the ways of Woodall, Shipman, Bosilca and Maccabe, "High performance RDMA protocols
// in HPC": copy in and out of registered buffers, registration on demand, a cache of registrations, the pipeline that registers the
// next fragments while this one is written, and the pipeline that keeps its registrations.
//
// A [Domain] holds all registrations of a device within a budget of bytes. A registration is used until its [Pin] is
// released; kept ones then stay, until others need the bytes (those unused for longest go first) or Invalidate tells that
// their memory is changed: unmapped, or a file that gets shorter. One in use is only marked then; its users hear of it, and when the last
// one ends it goes.
package pin
