package cmdline

import (
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

// line is a small command line with one of each.
type line struct {
	Data string `placeholder:"DIR" help:"Where it is, ${default} if not given." default:"/d" env:"LINE_DATA"`
	Get  struct {
		File   string   `arg:"" help:"What to get."`
		Node   []string `arg:"" optional:"" help:"From these nodes."`
		How    string   `enum:"fast,fair" default:"fair" help:"fast or fair."`
		Option []string `short:"o" placeholder:"OPT"`
		Quiet  bool     `short:"q" help:"Say nothing, as with 'a\\b'."`
		Dry    bool     `hidden:""`
	} `cmd:"" help:"Get a file."`
	Group struct {
		Add struct {
			Name string `arg:""`
			From string `required:"" placeholder:"NODE" help:".first node."`
		} `cmd:"" help:"Add one."`
	} `cmd:"" help:"Groups."`
	Secret struct{} `cmd:"" hidden:""`
}

func model(t *testing.T) *kong.Application {
	t.Helper()
	k, err := kong.New(&line{}, kong.Name("line"), kong.Description("A line."))
	if err != nil {
		t.Fatal(err)
	}
	return k.Model
}

func TestComplete(t *testing.T) {
	app := model(t)
	for _, c := range []struct{ line, want string }{
		{"", "words get group"},
		{"g", "words get group"},
		{"ge", "words get"},
		{"-", "words --help --data"},
		{"--data ", "directories"},
		{"--data=", "directories"},
		{"--data /x ge", "words get"},
		{"get ", "files"},
		{"get f ", "words n1 o2 nodes"},
		{"get f n1 n", "words n1 nodes"}, // as many as one likes
		{"get -q f n", "words n1 nodes"},
		{"get -qo x f n", "words n1 nodes"},
		{"get -ox f n", "words n1 nodes"},
		{"get --data /x f n", "words n1 nodes /x"},
		{"get --data=/x f n", "words n1 nodes /x"},
		{"get --data = /x f n", "words n1 nodes /x"}, // as bash splits it
		{"get --how ", "words fast fair"},
		{"get --how fas", "words fast"},
		{"get --how=fai", "words fair"},
		{"get --how = fai", "words fair"},
		{"get --how =", "words fast fair"},
		{"get --", "words --help --data --how --option --quiet"},
		{"get --option ", "words"},
		{"get -- -", "files"},
		{"get --bogus f n", "words n1 nodes"},
		{"group ", "words add"},
		{"group add ", "words"},
		{"group add x ", "words"}, // takes one
		{"group add --from ", "words n1 o2 nodes"},
		{"bogus ", "words get group"},
		{"secret ", "words"},
	} {
		var out strings.Builder
		asked := ""
		nodesOf := func(data string) []Word {
			asked = " nodes " + data
			return []Word{{Text: "n1", Help: "up"}, {Text: "o2"}}
		}
		if err := Complete(&out, app, strings.Split(c.line, " "), nodesOf); err != nil {
			t.Fatal(err)
		}
		got := ""
		for row := range strings.Lines(out.String()) {
			text, _, _ := strings.Cut(strings.TrimSuffix(row, "\n"), "\t")
			got += " " + text
		}
		if got = strings.TrimSpace(got + asked); got != c.want {
			t.Errorf("%q: %q, want %q", c.line, got, c.want)
		}
	}
}

func TestMan(t *testing.T) {
	page := string(Man(model(t), Page{Section: 8, Date: "2026-01-02", Version: "1.2", Summary: "a line",
		Sections: []Section{{Title: "FILES", Terms: [][2]string{{"/a-b", "Use `x-y`."}}}}, SeeAlso: "`other`(1)"}))
	for _, want := range []string{
		`.TH "LINE" 8 2026-01-02 "line 1.2" "line"`,
		`line \- a line`,
		"\n.SS \"line get\"\n\\fBline get\\fR \\fIFILE\\fR [\\fINODE\\fR] [\\fIFLAGS\\fR]\n.PP\nGet a file.\n",
		"\n.TP\n\\fIFILE\\fR\nWhat to get.\n",
		"\n.TP\n\\fB\\-\\-how\\fR=\\fIHOW\\fR\nfast or fair. Default: \\fBfair\\fR.\n",
		"\n.TP\n\\fB\\-q\\fR, \\fB\\-\\-quiet\\fR\nSay nothing, as with 'a\\eb'.\n",
		`\fBline group add\fR \fB\-\-from\fR=\fINODE\fR \fINAME\fR`,
		"\n\\&.first node.\n", // no macro
		"\n.TP\n\\fB\\-\\-data\\fR=\\fIDIR\\fR\nWhere it is, /d if not given.\n",
		"\n.TP\n\\fBLINE_DATA\\fR\nStands for \\fB\\-\\-data\\fR where that is not given.\n",
		"\n.SH \"FILES\"\n.TP\n\\fB/a\\-b\\fR\nUse \\fBx\\-y\\fR.\n",
		"\\fBother\\fR(1)\n",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("no %q in\n%s", want, page)
		}
	}
	for _, hidden := range []string{"secret", "dry"} {
		if strings.Contains(page, hidden) {
			t.Errorf("%q is hidden, and told", hidden)
		}
	}
}
