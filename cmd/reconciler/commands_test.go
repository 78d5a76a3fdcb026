package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"unicode"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/callreceipt/reconciler/internal/database"
	"github.com/callreceipt/reconciler/internal/task"
)

// need ends the script unless it called a command with so many words, and without "!".
func need(ts *testscript.TestScript, neg bool, args []string, least int, usage string) {
	if neg || len(args) < least {
		ts.Fatalf("usage: %s", usage)
	}
}

func exits(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2, "exits N program [args...]")
	err := ts.Exec(args[1], args[2:]...)
	var ended *exec.ExitError
	if err != nil && !errors.As(err, &ended) {
		ts.Check(err)
	}
	got := 0
	if ended != nil {
		got = ended.ExitCode()
	}
	if fmt.Sprint(got) != args[0] {
		ts.Fatalf("exit code %d, want %s", got, args[0])
	}
}

func runSQL(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1, "sql 'statement' | file.sql")
	statement := args[0]
	if strings.HasSuffix(statement, ".sql") {
		statement = ts.ReadFile(statement)
	}
	db, err := database.Open(ts.Getenv("RECONCILER_DATABASE_URL"))
	ts.Check(err)
	defer db.Close()
	rows, err := db.QueryContext(context.Background(), statement)
	ts.Check(err)
	defer rows.Close()
	for more := true; more; more = rows.NextResultSet() {
		ts.Check(printRows(ts.Stdout(), rows))
	}
	ts.Check(rows.Err())
}

func printRows(w io.Writer, rows *sql.Rows) error {
	columns, err := rows.Columns()
	if err != nil {
		return err
	}
	row := make([]sql.NullString, len(columns))
	targets := make([]any, len(columns))
	for i := range row {
		targets[i] = &row[i]
	}
	for rows.Next() {
		if err := rows.Scan(targets...); err != nil {
			return err
		}
		words := make([]string, len(columns))
		for i, c := range row {
			if words[i] = c.String; !c.Valid {
				words[i] = "NULL"
			}
		}
		fmt.Fprintln(w, strings.Join(words, "|"))
	}
	return rows.Err()
}

func asked(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1, "asked N")
	got, bizIDs := ts.Value(downstreamKey{}).(*downstream).seen()
	if fmt.Sprint(got) != args[0] {
		ts.Fatalf("the downstream saw %d requests, want %s; asked for: %q", got, args[0], bizIDs)
	}
}

func isJSON(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1, "json file")
	got, err := oneDocument(ts.ReadFile("stdout"))
	ts.Check(err)
	want, err := oneDocument(ts.ReadFile(args[0]))
	ts.Check(err)
	if diff := cmp.Diff(want, alike(got, want)); diff != "" {
		ts.Fatalf("stdout is not %s (-want +got):\n%s", args[0], diff)
	}
}

// oneDocument reads a text that must be one JSON document and nothing else.
func oneDocument(text string) (v any, err error) {
	d := json.NewDecoder(strings.NewReader(text))
	if err := d.Decode(&v); err != nil {
		return nil, fmt.Errorf("not JSON: %w in %q", err, text)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("more than one JSON document: %q", text)
	}
	return v, nil
}

// alike is got with "*" wherever want has it and got has some value.
func alike(got, want any) any {
	switch w := want.(type) {
	case string:
		if w == "*" && got != nil {
			return w
		}
	case map[string]any:
		if g, ok := got.(map[string]any); ok {
			for key, value := range w {
				if _, has := g[key]; has {
					g[key] = alike(g[key], value)
				}
			}
		}
	case []any:
		if g, ok := got.([]any); ok && len(g) == len(w) {
			for i := range g {
				g[i] = alike(g[i], w[i])
			}
		}
	}
	return got
}

func isJSONLines(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1, "jsonl stdout|stderr")
	text := strings.TrimSuffix(ts.ReadFile(args[0]), "\n")
	for line := range strings.SplitSeq(text, "\n") {
		var object map[string]any
		if err := json.Unmarshal([]byte(line), &object); err != nil {
			ts.Fatalf("%s has a line that is no JSON object: %v: %q", args[0], err, line)
		}
	}
}

func isPlain(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2, "plain stdout|stderr N")
	text := ts.ReadFile(args[0])
	want, err := strconv.Atoi(args[1])
	ts.Check(err)
	if got := strings.Count(text, "\n"); got != want || (text != "" && !strings.HasSuffix(text, "\n")) {
		ts.Fatalf("%s has %d lines, want %d: %q", args[0], got, want, text)
	}
	foreign := func(r rune) bool { return r != '\n' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r)) }
	if strings.ContainsFunc(text, foreign) {
		ts.Fatalf("%s has control characters: %q", args[0], text)
	}
}

// holder works on something, in the background of a script, until it is released.
type holder struct {
	over chan struct{} // ends the work; nil when there is none
	done sync.WaitGroup
}

func (h *holder) release() {
	if h.over != nil {
		close(h.over)
		h.done.Wait()
		h.over = nil
	}
}

func hold(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1, "hold lease")
	db, err := database.Open(ts.Getenv("RECONCILER_DATABASE_URL"))
	ts.Check(err)
	h := ts.Value(holderKey{}).(*holder)
	h.over = make(chan struct{})
	began := make(chan error, 1)
	h.done.Go(func() {
		defer db.Close()
		began <- task.Hold(context.Background(), db, slog.New(slog.DiscardHandler), args[0], "somebody-else", func(context.Context) error {
			began <- nil
			<-h.over
			return nil
		})
	})
	ts.Defer(h.release)
	ts.Check(<-began)
}

func release(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 0, "release")
	ts.Value(holderKey{}).(*holder).release()
}
