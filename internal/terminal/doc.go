// Package terminal prints text that may hold anything, such as names of files, on a terminal.
//
// A file can have any name. A name with escape sequences moves the cursor, changes the title or rewrites what was
// printed before; one with a newline forges a line; one that is not UTF-8 is unreadable. All text from users, peers and
// the disk goes through [Escape]. [Printf] and [Println] do that with every string, error and
// Stringer among their arguments:
//
//	terminal.Printf(os.Stdout, "%s: %s\n", path, err)
package terminal
