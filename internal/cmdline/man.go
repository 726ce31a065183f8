package cmdline

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/alecthomas/kong"
)

// Page is what a man page says in addition to the commands and their flags.
type Page struct {
	Section  int
	Date     string // YYYY-MM-DD
	Version  string
	Summary  string // after the name, without a full stop
	Sections []Section
	SeeAlso  string
}

// Section is a list of terms. Between two backquotes stands what is typed.
type Section struct {
	Title string
	Terms [][2]string
}

// Man is the man page of a command line, in the macros of man(7).
func Man(app *kong.Application, page Page) []byte {
	var m man
	m.line(".TH %s %d %s %s %s", quoted(strings.ToUpper(app.Name)), page.Section, page.Date, // a date is no text
		quoted(app.Name+" "+page.Version), quoted(app.Name))
	m.title("NAME")
	m.line(`%s \- %s`, escape(app.Name), escape(page.Summary))
	m.title("SYNOPSIS")
	m.line(`\fB%s\fR \fICOMMAND\fR [\fIFLAGS\fR] [\fIARGUMENTS\fR]`, escape(app.Name))
	m.title("DESCRIPTION")
	m.line("%s", prose(app.Help))
	m.title("COMMANDS")
	for _, leaf := range app.Leaves(true) {
		m.command(app.Name, leaf)
	}
	m.title("FLAGS OF ALL COMMANDS")
	m.flags(app.Node)
	m.environment(app)
	for _, s := range page.Sections {
		m.title(s.Title)
		for _, term := range s.Terms {
			m.term(`\fB`+escape(term[0])+`\fR`, term[1])
		}
	}
	m.title("SEE ALSO")
	m.line("%s", prose(page.SeeAlso))
	return m.Bytes()
}

// man is a page that grows.
type man struct{ bytes.Buffer }

func (m *man) line(format string, args ...any) { fmt.Fprintf(m, format+"\n", args...) }
func (m *man) title(text string)               { m.line(".SH %s", quoted(text)) }

func (m *man) term(head, text string) {
	m.line(".TP\n%s\n%s", head, prose(text))
}

func (m *man) command(program string, n *kong.Node) {
	m.line(".SS %s", quoted(program+" "+n.Path()))
	usage := []string{`\fB` + escape(program+" "+n.Path()) + `\fR`}
	for _, f := range n.Flags {
		if f.Required {
			usage = append(usage, flagText(f))
		}
	}
	for _, arg := range n.Positional {
		usage = append(usage, argText(arg))
	}
	m.line("%s", strings.Join(append(usage, `[\fIFLAGS\fR]`), " "))
	m.line(".PP\n%s", prose(n.Help))
	for _, arg := range n.Positional {
		if arg.Help != "" {
			m.term(argText(arg), arg.Help)
		}
	}
	m.flags(n)
}

func (m *man) flags(n *kong.Node) {
	for _, f := range n.Flags {
		if f.Hidden {
			continue
		}
		head := flagText(f)
		if f.Short != 0 {
			head = fmt.Sprintf(`\fB\-%c\fR, %s`, f.Short, head)
		}
		text := f.Help
		if f.HasDefault && f.OrigHelp == f.Help { // else the help names it
			text += " Default: `" + f.Default + "`."
		}
		m.term(head, text)
	}
}

// environment lists the variables that stand for flags.
func (m *man) environment(app *kong.Application) {
	m.title("ENVIRONMENT")
	told := map[string]bool{}
	all := app.Node.Flags
	for _, leaf := range app.Leaves(true) {
		all = append(all[:len(all):len(all)], leaf.Flags...)
	}
	for _, f := range all {
		for _, env := range f.Envs {
			if !told[env] {
				told[env] = true
				m.term(`\fB`+escape(env)+`\fR`, "Stands for `--"+f.Name+"` where that is not given.")
			}
		}
	}
}

func flagText(f *kong.Flag) string {
	text := `\fB\-\-` + escape(f.Name) + `\fR`
	if f.IsBool() {
		return text
	}
	placeholder := f.PlaceHolder
	if placeholder == "" {
		placeholder = strings.ToUpper(f.Name)
	}
	return text + `=\fI` + escape(placeholder) + `\fR`
}

func argText(arg *kong.Value) string {
	text := `\fI` + escape(strings.ToUpper(arg.Name)) + `\fR`
	if arg.Required {
		return text
	}
	return "[" + text + "]"
}

// prose is text of which the parts between backquotes are bold.
func prose(text string) string {
	parts := strings.Split(text, "`")
	for i, part := range parts {
		if parts[i] = escape(part); i%2 == 1 {
			parts[i] = `\fB` + parts[i] + `\fR`
		}
	}
	text = strings.Join(parts, "")
	if strings.HasPrefix(text, ".") || strings.HasPrefix(text, "'") {
		text = `\&` + text
	}
	return text
}

// escape gives a text as it is to roff. A bare dash would be a hyphen, which can't be copied into a command.
func escape(text string) string {
	return strings.NewReplacer(`\`, `\e`, "-", `\-`, "\n", " ").Replace(text)
}

func quoted(text string) string {
	return `"` + strings.ReplaceAll(escape(text), `"`, `\(dq`) + `"`
}
