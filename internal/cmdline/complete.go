package cmdline

import (
	"embed"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// Word is what may be typed at a place, with a few words of help.
type Word struct {
	Text string
	Help string
}

// kind says what may stand at a place. It is the first line of an answer to a shell.
type kind string

const (
	words       kind = "words" // the words that are listed
	files       kind = "files" // the shell knows them
	directories kind = "directories"
	nodes       kind = "nodes" // of the cluster; a shell gets them as words
)

// kinds are the placeholders that mean something.
var kinds = map[string]kind{"FILE": files, "PATH": files, "DIR": directories, "NODE": nodes}

//go:embed completion.bash completion.zsh completion.fish
var scripts embed.FS

// Script is the completion script for bash, zsh or fish.
func Script(shell string) ([]byte, error) {
	return scripts.ReadFile("completion." + shell)
}

// Complete answers a script: first the kind of what may stand in place of the last word, then each word that begins
// like it, with a tab before its help. The words are those after the name of the program. nodesOf lists the nodes that
// are known in a data directory, which is empty if the command line names none.
func Complete(w io.Writer, app *kong.Application, line []string, nodesOf func(data string) []Word) error {
	if len(line) == 0 {
		line = []string{""}
	}
	c := cursor{node: app.Node}
	last := len(line) - 1
	for _, word := range line[:last] {
		c.pass(word)
	}
	what, list := c.place(line[last])
	if what == nodes {
		what, list = words, nodesOf(c.data)
	}
	if _, err := fmt.Fprintln(w, what); err != nil {
		return err
	}
	_, begun, valued := strings.Cut(line[last], "=")
	if !valued {
		begun = line[last]
	}
	for _, word := range list {
		if !strings.HasPrefix(word.Text, begun) {
			continue
		}
		if _, err := fmt.Fprintf(w, "%s\t%s\n", word.Text, word.Help); err != nil {
			return err
		}
	}
	return nil
}

// cursor goes along a command line that may make no sense yet.
type cursor struct {
	node     *kong.Node // the command so far
	args     int        // arguments of it so far
	flag     *kong.Flag // waits for its value
	onlyArgs bool       // after --
	data     string     // value of --data
}

// pass takes a word that is whole. Bash makes three words of --flag=value.
func (c *cursor) pass(word string) {
	switch {
	case word == "=":
	case c.flag != nil:
		c.take(c.flag, word)
		c.flag = nil
	case c.onlyArgs:
		c.args++
	case word == "--":
		c.onlyArgs = true
	case strings.HasPrefix(word, "--"):
		name, value, valued := strings.Cut(word[2:], "=")
		if f := c.find(func(f *kong.Flag) bool { return f.Name == name || slices.Contains(f.Aliases, name) }); valued {
			c.take(f, value)
		} else if f != nil && !f.IsBool() {
			c.flag = f
		}
	case strings.HasPrefix(word, "-") && word != "-":
		c.short(word[1:])
	default:
		c.arg(word)
	}
}

// short takes the letters after one dash: flags without a value, and then one whose value follows.
func (c *cursor) short(letters string) {
	for i, letter := range letters {
		f := c.find(func(f *kong.Flag) bool { return f.Short == letter })
		if f == nil || f.IsBool() {
			continue
		}
		if rest := letters[i+len(string(letter)):]; rest == "" {
			c.flag = f
		}
		return
	}
}

func (c *cursor) arg(word string) {
	for _, child := range c.node.Children {
		if child.Name == word || slices.Contains(child.Aliases, word) {
			c.node = child
			return
		}
	}
	c.args++
}

func (c *cursor) take(f *kong.Flag, value string) {
	if f != nil && f.Name == "data" {
		c.data = value
	}
}

// find looks at the flags of the command and of those above it.
func (c *cursor) find(ok func(*kong.Flag) bool) *kong.Flag {
	for _, group := range c.node.AllFlags(false) {
		if i := slices.IndexFunc(group, ok); i >= 0 {
			return group[i]
		}
	}
	return nil
}

// place is what may stand in place of a word.
func (c *cursor) place(word string) (kind, []Word) {
	if name, _, valued := strings.Cut(word, "="); valued && c.flag == nil && !c.onlyArgs {
		c.pass(name) // --flag=val in one word
	}
	switch {
	case c.flag != nil:
		return c.value(c.flag.Value, c.flag.PlaceHolder)
	case strings.HasPrefix(word, "-") && !c.onlyArgs:
		return words, c.flags()
	case len(c.node.Children) > 0:
		return words, c.commands()
	case len(c.node.Positional) == 0:
		return words, nil
	}
	arg := c.node.Positional[min(c.args, len(c.node.Positional)-1)]
	if c.args >= len(c.node.Positional) && !arg.IsCumulative() {
		return words, nil
	}
	return c.value(arg, strings.ToUpper(arg.Name))
}

func (c *cursor) value(v *kong.Value, placeholder string) (kind, []Word) {
	if v.Enum != "" {
		var list []Word
		for _, text := range v.EnumSlice() {
			list = append(list, Word{Text: text})
		}
		return words, list
	}
	if what, ok := kinds[placeholder]; ok {
		return what, nil
	}
	return words, nil
}

func (c *cursor) flags() (list []Word) {
	for _, group := range c.node.AllFlags(true) {
		for _, f := range group {
			list = append(list, Word{Text: "--" + f.Name, Help: f.Help})
		}
	}
	return list
}

func (c *cursor) commands() (list []Word) {
	for _, child := range c.node.Children {
		if !child.Hidden {
			list = append(list, Word{Text: child.Name, Help: child.Help})
		}
	}
	return list
}
