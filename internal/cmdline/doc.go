// Package cmdline generates what a shell and a reader need to know about a command line from its definition:
// completions and a man page. It knows kong's model of a command line, and nothing of what the commands do.
//
// A completion script is a few lines. At each TAB it asks the program, which answers from its own definition, so a
// script is never older than the program. The placeholder of a flag or the name of an argument says what stands for a
// file, a directory or a node: FILE or PATH, DIR, NODE.
package cmdline
