package localpg

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// The servers this project is written for.
const (
	oldestMajor = 14
	newestMajor = 18
)

const (
	envBin        = "RECONCILER_PG_BIN"
	envRepository = "RECONCILER_PG_REPOSITORY"
)

// search is where binaries are looked for, in this order.
type search struct {
	explicit   string   // RECONCILER_PG_BIN: the only place, if set
	path       string   // PATH
	patterns   []string // globs of bin folders; the highest supported version of all of them wins
	caches     []string // folders for fetched binaries, best first
	repository string   // where to fetch from; empty is the library's default
}

// defaultSearch reads the environment.
func defaultSearch(a account) search {
	return search{
		explicit: os.Getenv(envBin),
		path:     os.Getenv("PATH"),
		patterns: []string{
			"/usr/lib/postgresql/*/bin",                               // Debian, Ubuntu
			"/usr/pgsql-*/bin",                                        // Fedora, RHEL with the packages of postgresql.org
			"/opt/homebrew/opt/postgresql@*/bin",                      // Homebrew, Apple silicon
			"/usr/local/opt/postgresql@*/bin",                         // Homebrew, Intel
			"/home/linuxbrew/.linuxbrew/opt/postgresql@*/bin",         // Homebrew, Linux
			"/Applications/Postgres.app/Contents/Versions/[1-9]*/bin", // Postgres.app
		},
		caches:     cacheDirs(a),
		repository: os.Getenv(envRepository),
	}
}

// found is a folder that holds a server.
type found struct {
	bin   string
	major int
}

// find is the folder of the binaries to use. The error names every place that was looked at and what was wrong there.
func (s search) find(ctx context.Context, a account) (string, error) {
	var looked []error
	try := func(dir string) (found, bool) {
		f, err := inspect(ctx, dir, a)
		if err != nil {
			looked = append(looked, err)
		}
		return f, err == nil
	}
	if s.explicit != "" {
		if f, ok := try(s.explicit); ok {
			return f.bin, nil
		}
		return "", fmt.Errorf("%s=%s: %w", envBin, s.explicit, errors.Join(looked...))
	}
	for _, dir := range filepath.SplitList(s.path) {
		if dir == "" || !exists(filepath.Join(dir, "postgres")) {
			continue
		}
		if f, ok := try(dir); ok {
			return f.bin, nil
		}
	}
	var installed []found
	for _, pattern := range s.patterns {
		dirs, err := filepath.Glob(pattern)
		if err != nil {
			return "", fmt.Errorf("looking for PostgreSQL in %q: %w", pattern, err)
		}
		for _, dir := range dirs {
			if f, ok := try(dir); ok {
				installed = append(installed, f)
			}
		}
	}
	if len(installed) > 0 {
		return slices.MaxFunc(installed, func(x, y found) int { return x.major - y.major }).bin, nil
	}
	bin, err := s.fetched(ctx, a)
	if err == nil {
		return bin, nil
	}
	if ctx.Err() != nil {
		return "", err
	}
	return "", s.missing(append(looked, err))
}

func (s search) missing(looked []error) error {
	return fmt.Errorf(`no PostgreSQL %d to %d on this machine: %s is not set, nothing usable in PATH, nor in %s
%w
install one, or set %s to the folder of its postgres and initdb:
  Debian, Ubuntu:  apt-get install postgresql
  Fedora:          dnf install postgresql-server
  macOS:           brew install postgresql@%d`,
		oldestMajor, newestMajor, envBin, strings.Join(s.patterns, ", "),
		errors.Join(looked...), envBin, newestMajor-1)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// inspect follows links (share and lib are found from the real place of the binary) and asks the server for its
// version as the account that will run it.
func inspect(ctx context.Context, dir string, a account) (found, error) {
	binary, err := filepath.EvalSymlinks(filepath.Join(dir, "postgres"))
	if err != nil {
		return found{}, err
	}
	if binary, err = filepath.Abs(binary); err != nil {
		return found{}, err
	}
	bin := filepath.Dir(binary)
	if !exists(filepath.Join(bin, "initdb")) {
		return found{}, fmt.Errorf("%s: no initdb beside postgres", bin)
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, "--version")
	cmd.Dir = "/"
	cmd.Env = serverEnv(os.Environ())
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: a.credential()}
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil {
		return found{}, fmt.Errorf("%s --version as %s: %w", binary, a, err)
	}
	major, err := parseMajor(string(out))
	if err != nil {
		return found{}, fmt.Errorf("%s --version: %w", binary, err)
	}
	if major < oldestMajor || major > newestMajor {
		return found{}, fmt.Errorf("%s is PostgreSQL %d, which is not between %d and %d", binary, major, oldestMajor, newestMajor)
	}
	return found{bin: bin, major: major}, nil
}

var versionLine = regexp.MustCompile(`^postgres \(PostgreSQL\) (\d+)`)

// parseMajor takes the major version out of what postgres --version prints; "17beta1" is 17, "9.6.24" is 9.
func parseMajor(out string) (int, error) {
	m := versionLine.FindStringSubmatch(out)
	if m == nil {
		return 0, fmt.Errorf("%q is not the version of a PostgreSQL server", strings.TrimSpace(out))
	}
	return strconv.Atoi(m[1])
}
