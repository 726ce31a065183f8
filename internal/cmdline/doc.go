// Package cmdline makes what a shell and a reader need of a command line from its definition: completions and a man
// page. It knows kong's model of a command line, and nothing of what the commands do.
//
// A completion script is a few lines. At each TAB it asks the program, which answers from its own definition: a script
// is never older than the program. What stands for a file, a directory or a node is told by the placeholder of a flag,
// or by the name of an argument: FILE or PATH, DIR, NODE.
package cmdline
