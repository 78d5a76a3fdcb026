package config

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/callreceipt/reconciler/internal/secretfile"
)

const (
	defaultFile = "reconciler.yaml"
	// largestFile bounds the configuration file, in bytes.
	largestFile = 1 << 20
)

// Options says where the configuration comes from.
type Options struct {
	// Path is --config. Empty means RECONCILER_CONFIG, or else ./reconciler.yaml if there is one.
	Path string
	// Environ is the environment as os.Environ returns it.
	Environ []string
	// Override sets what was given as flags. It sees the file and the environment applied and may be nil.
	Override func(*Config)
}

// Source tells where the values of a configuration came from.
type Source struct {
	// File is the file that was read, or empty.
	File string
	// Variables are the environment variables that were applied, in alphabetical order.
	Variables []string
}

// String is made for people: "reconciler.yaml, RECONCILER_DATABASE_URL".
func (s Source) String() string {
	var parts []string
	if s.File != "" {
		parts = append(parts, s.File)
	}
	parts = append(parts, s.Variables...)
	if len(parts) == 0 {
		return "defaults"
	}
	return strings.Join(parts, ", ")
}

// Load reads, completes and validates the configuration. Its error is always a
// *[Problems] that lists everything that is wrong. Relative paths, in Options
// and in the file, start at the working directory.
func Load(opt Options) (*Config, error) {
	variables := variablesOf(opt.Environ)
	file, data, err := readFile(opt.Path, variables["RECONCILER_CONFIG"])
	if err != nil {
		return nil, &Problems{List: []Problem{{File: file, Message: err.Error()}}}
	}
	return build(file, data, variables, opt.Override)
}

// build is Load once the file is in memory.
func build(file string, data []byte, variables map[string]string, override func(*Config)) (*Config, error) {
	r := newReport(file)
	c := defaultConfig()
	c.Source.File = file

	readable := decodeFile(data, c, r)
	c.Database.refuseBoth(path{"database"}, r)
	applyEnvironment(c, variables, r)
	if override != nil {
		applyOverride(c, override, r)
	}
	if readable {
		c.complete(r)
		c.validate(r)
	}
	if err := r.err(); err != nil {
		return nil, err
	}
	return c, nil
}

// readFile finds the configuration file and reads it. No file at all is an empty name and no error.
func readFile(flag, variable string) (name string, data []byte, err error) {
	switch {
	case flag != "":
		name = flag
	case variable != "":
		name = variable
	default:
		if _, err := os.Stat(defaultFile); errors.Is(err, fs.ErrNotExist) {
			return "", nil, nil
		}
		name = defaultFile
	}
	f, err := os.Open(name)
	if err != nil {
		return name, nil, secretfile.Trouble(err)
	}
	defer func() { _ = f.Close() }()
	data, err = io.ReadAll(io.LimitReader(f, largestFile+1))
	switch {
	case err != nil:
		return name, nil, secretfile.Trouble(err)
	case len(data) > largestFile:
		return name, nil, errors.New("is larger than 1 MiB, which no configuration is; is it the right file?")
	}
	return name, data, nil
}
