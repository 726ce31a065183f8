// Package terminal prints text that may hold anything, such as names of files, on a terminal.
//
// A file can have any name: one with escape sequences moves the cursor, changes the title or rewrites what was
// printed before; one with a newline forges a line; one that is not UTF-8 prints as nothing readable. Whatever a
// user, a peer or the disk gave goes through [Escape]. [Printf] and [Println] do that with every string, error and
// Stringer among their arguments:
//
//	terminal.Printf(os.Stdout, "%s: %s\n", path, err)
package terminal
