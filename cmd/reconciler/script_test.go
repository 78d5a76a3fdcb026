package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/callreceipt/reconciler/internal/localpg"
)

// TestTheCommandLine runs testdata/script against the real program, a real PostgreSQL and a real HTTP downstream. Each script
// has an empty database of its own in $RECONCILER_DATABASE_URL and a downstream at $DOWNSTREAM; both names are filled in where
// they stand in its YAML files. Commands beside those of testscript:
//
//	exits N program [args...]   runs it; it must exit with N
//	sql 'statement' | file.sql  prints the rows, columns separated by |
//	asked N                     that many requests reached the downstream so far
//	json file                   stdout is this one JSON document: the same keys and values; "*" stands for any value but null
//	jsonl stdout|stderr         every line is a JSON object
//	plain stdout|stderr N       exactly N lines, without one control character
//	hold name, release          takes that lease as another holder, gives it back
func TestTheCommandLine(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir: filepath.Join("testdata", "script"), RequireExplicitExec: true, RequireUniqueNames: true,
		Setup: surroundings,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits, "sql": runSQL, "asked": asked, "json": isJSON, "jsonl": isJSONLines, "plain": isPlain,
			"hold": hold, "release": release,
		},
	})
}

// The keys of what a script keeps beside its files.
type (
	downstreamKey struct{}
	holderKey     struct{}
)

func surroundings(env *testscript.Env) error {
	t := env.T().(testing.TB) // testscript.Run hands out the *testing.T of each script
	d := newDownstream(t)
	env.Values[downstreamKey{}] = d
	env.Values[holderKey{}] = &holder{}
	env.Setenv("DOWNSTREAM", d.URL)
	env.Setenv("RECONCILER_DATABASE_URL", localpg.NewDatabase(t, localpg.Migration{}))
	return fillIn(env)
}

// fillIn replaces the two addresses in the YAML files of a script.
func fillIn(env *testscript.Env) error {
	names := strings.NewReplacer("$DOWNSTREAM", env.Getenv("DOWNSTREAM"), "$RECONCILER_DATABASE_URL", env.Getenv("RECONCILER_DATABASE_URL"))
	return filepath.WalkDir(env.WorkDir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".yaml" {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(path, []byte(names.Replace(string(text))), 0o600)
	})
}
