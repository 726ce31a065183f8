package fs

// MountLinux mounts at the directory of some options, for tests that stand between the kernel and a file system.
var MountLinux = mountLinux
