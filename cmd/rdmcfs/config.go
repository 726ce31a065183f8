package main

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"
	"github.com/alecthomas/kong"
)

// configDefault is read if it is there; a file that is named must be there.
const configDefault = "/etc/rdmcfs.toml"

// settings is what a configuration file says: flags of 'rdmcfs daemon', by their names, as text.
type settings struct {
	path   string
	values map[string]string
}

// readSettings reads a file in TOML. Its keys are the names of flags: an unknown key, a table or a list is an error.
func readSettings(path string, known []string) (*settings, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) && path == configDefault {
		return &settings{path: path}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("configuration file: %w", err)
	}
	said := map[string]any{}
	if _, err := toml.Decode(string(text), &said); err != nil {
		var syntax toml.ParseError
		if errors.As(err, &syntax) {
			return nil, fmt.Errorf("configuration file %s: line %d: %s", path, syntax.Position.Line, syntax.Message)
		}
		return nil, fmt.Errorf("configuration file %s: %w", path, err)
	}
	s := &settings{path: path, values: map[string]string{}}
	for _, key := range slices.Sorted(maps.Keys(said)) {
		if !slices.Contains(known, key) {
			return nil, fmt.Errorf("configuration file %s: no setting is called %q: want %s", path, key,
				strings.Join(known, ", "))
		}
		switch value := said[key].(type) {
		case string:
			s.values[key] = value
		case bool:
			s.values[key] = strconv.FormatBool(value)
		case int64:
			s.values[key] = strconv.FormatInt(value, 10)
		default:
			return nil, fmt.Errorf("configuration file %s: %s: want text in quotes, a whole number, true or false", path, key)
		}
	}
	return s, nil
}

// Validate implements [kong.Resolver].
func (s *settings) Validate(*kong.Application) error { return nil }

// Resolve implements [kong.Resolver]: the value of a flag that was not given. Variables of the environment go before
// the file.
func (s *settings) Resolve(_ *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	value, ok := s.values[flag.Name]
	if !ok || variableOf(flag) != "" {
		return nil, nil
	}
	return value, nil
}

// variableOf is the variable of the environment that sets a flag, "" if none does.
func variableOf(flag *kong.Flag) string {
	for _, name := range flag.Envs {
		if _, ok := os.LookupEnv(name); ok {
			return name
		}
	}
	return ""
}

// BeforeResolve reads the configuration file. Kong calls it when it knows the words of the command line, and before it
// gives values to the flags that are not among them.
func (c *cli) BeforeResolve(ctx *kong.Context) error {
	for _, flag := range ctx.Model.Flags {
		if flag.Name != "config" {
			continue
		}
		path, ok := ctx.FlagValue(flag).(string)
		if !ok {
			return fmt.Errorf("--config: want the name of a file")
		}
		s, err := readSettings(path, settingNames(ctx.Model))
		if err != nil {
			return err
		}
		c.settings = s
		ctx.AddResolver(s)
	}
	return nil
}

// settingFlags are the flags that a configuration file may set: the data directory, and what 'rdmcfs daemon' takes.
func settingFlags(model *kong.Application) (flags []*kong.Flag) {
	for _, flag := range model.Flags {
		if flag.Name == "data" {
			flags = append(flags, flag)
		}
	}
	for _, command := range model.Children {
		if command.Name == "daemon" {
			flags = append(flags, command.Flags...)
		}
	}
	return flags
}

func settingNames(model *kong.Application) (names []string) {
	for _, flag := range settingFlags(model) {
		names = append(names, flag.Name)
	}
	return names
}

type configCmd struct {
	Check configCheckCmd `cmd:"" help:"Check the configuration file, and print what a daemon would run with."`
}

// configCheckCmd has the flags of a daemon: what is given beside it counts as it would for a daemon.
type configCheckCmd struct {
	logFlags
	daemonFlags
	jsonFlag
}

// setting is one setting of a daemon, and what sets it.
type setting struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	From  string `json:"from"` // a flag, a variable, a file, or the default
}

// Run prints each setting and what sets it. It asks no daemon: one that runs has what it was started with.
func (c *configCheckCmd) Run(a *app, ctx *kong.Context) error {
	if _, err := c.fabric(); err != nil {
		return err
	}
	if _, err := c.http(); err != nil {
		return err
	}
	var list []setting
	flags := map[string]*kong.Flag{}
	for _, flag := range ctx.Flags() {
		flags[flag.Name] = flag
	}
	for _, name := range settingNames(ctx.Model) {
		list = append(list, setting{name, valueText(ctx.FlagValue(flags[name])), a.fromOf(ctx, flags[name])})
	}
	if c.JSON {
		return a.printJSON(list)
	}
	rows := [][]string{{"SETTING", "VALUE", "FROM"}}
	for _, s := range list {
		rows = append(rows, []string{s.Name, s.Value, s.From})
	}
	a.table(rows)
	return nil
}

// valueText is a flag's value as the configuration file has it, without quotes.
func valueText(value any) string {
	if level, ok := value.(slog.Level); ok {
		return strings.ToLower(level.String())
	}
	return fmt.Sprint(value)
}

// fromOf is what gives a flag its value.
func (a *app) fromOf(ctx *kong.Context, flag *kong.Flag) string {
	for _, path := range ctx.Path {
		if path.Flag == flag && !path.Resolved {
			return "--" + flag.Name
		}
	}
	if name := variableOf(flag); name != "" {
		return name
	}
	if _, ok := a.settings.values[flag.Name]; ok {
		return a.settings.path
	}
	return "default"
}

// standing is what a setting has without a word of the command line, and "" for the default.
func (a *app) standing(name string) string {
	if value, ok := os.LookupEnv("RDMCFS_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))); ok {
		return value
	}
	return a.settings.values[name]
}

// configWords name the configuration file to a daemon in the background, which has another working directory.
func (a *app) configWords() ([]string, error) {
	if a.settings.path == configDefault {
		return nil, nil
	}
	path, err := filepath.Abs(a.settings.path)
	if err != nil {
		return nil, fmt.Errorf("configuration file: %w", err)
	}
	return []string{"--config=" + path}, nil
}

// logFlags say what a daemon logs.
type logFlags struct {
	LogLevel  slog.Level `help:"What the daemon logs at least: debug, info, warn or error." default:"info" env:"RDMCFS_LOG_LEVEL"`
	LogFormat string     `help:"Lines of the log: text (words and key=value) or json." enum:"text,json" default:"text" env:"RDMCFS_LOG_FORMAT"`
}

// words are the flags again, for a daemon in the background.
func (f logFlags) words() []string {
	return []string{"--log-level=" + f.LogLevel.String(), "--log-format=" + f.LogFormat}
}

// logger writes to standard error.
func (a *app) logger(f logFlags) *slog.Logger {
	opts := &slog.HandlerOptions{Level: f.LogLevel}
	if f.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(a.err, opts))
	}
	return slog.New(slog.NewTextHandler(a.err, opts))
}
