package docs_test

import (
	"bytes"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/callreceipt/reconciler/internal/eventually"
	"github.com/callreceipt/reconciler/internal/testdb"
	"github.com/callreceipt/reconciler/migrations"
)

// The statements that a program in another language writes down, by the names it gives them.
var (
	javaSQL   = regexp.MustCompile(`(?s)static final String (\w+) = """\n(.*?)""";`)
	pythonSQL = regexp.MustCompile(`(?sm)^([A-Z_]+) = "(?:"")?([^"\n].*?|\n.*?)"(?:"")?$`)
	another   = regexp.MustCompile(`\?|%s`)
)

// flat is a statement without its line breaks, its end and the spelling of its parameters.
func flat(statement string) string {
	n := 0
	numbered := another.ReplaceAllStringFunc(statement, func(string) string { n++; return fmt.Sprintf("$%d", n) })
	return strings.TrimSuffix(strings.Join(strings.Fields(numbered), " "), ";")
}

func TestTheProgramsInOtherLanguagesUseTheStatementsOfTheGuide(t *testing.T) {
	t.Parallel()
	want := map[string]string{
		"ARRIVE": arrive, "CHARGE": business, "SETTLE": settle, "RECEIPT": readReceipt, "BY_BIZ": queryByBiz, "BY_CALL": queryByCall,
	}
	for name, mark := range want {
		want[name] = flat(guide(t, mark))
	}
	for language, constant := range map[string]*regexp.Regexp{"java": javaSQL, "python": pythonSQL} {
		program := block(t, adopting, language, "ARRIVE")
		got := map[string]string{}
		for _, found := range constant.FindAllStringSubmatch(program, -1) {
			got[found[1]] = flat(found[2])
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("the guide (-) and the program in %s (+): %s", language, diff)
		}
		if rest := constant.ReplaceAllString(program, ""); regexp.MustCompile(`\b(SELECT|INSERT|UPDATE|DELETE)\b`).MatchString(rest) {
			t.Errorf("the program in %s has more SQL than that", language)
		}
	}
}

// pythonService writes the program of the guide to a file, and finds an interpreter that compiles it.
func pythonService(t *testing.T) (python, file string) {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("there is no python3")
	}
	file = filepath.Join(t.TempDir(), "payment_service.py")
	if err := os.WriteFile(file, []byte(block(t, adopting, "python", "ARRIVE")), 0o600); err != nil {
		t.Fatal(err)
	}
	return python, file
}

func TestTheProgramInPythonCompiles(t *testing.T) {
	t.Parallel()
	python, file := pythonService(t)
	if out, err := exec.CommandContext(t.Context(), python, "-m", "py_compile", file).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestTheServiceInPythonPassesTheProof(t *testing.T) {
	t.Parallel()
	python, file := pythonService(t)
	for _, python = range []string{python, "/usr/bin/python3"} {
		if exec.CommandContext(t.Context(), python, "-c", "import psycopg, psycopg_pool").Run() == nil {
			prove(t, []string{python, file})
			return
		}
	}
	t.Skip("no python3 here has psycopg and psycopg_pool")
}

func TestTheServiceInGoPassesTheProof(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "downstream")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./examples/downstream").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	prove(t, []string{program})
}

// prove starts a downstream, and does with it what the guide does with curl.
func prove(t *testing.T, program []string) {
	t.Helper()
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("there is no curl")
	}
	dsn := testdb.URL(t, migrations.Downstream)
	db := testdb.Open(t, dsn)
	db.MustExec(guide(t, ownTable))
	address := startService(t, program, dsn)

	proof := exec.CommandContext(t.Context(), "sh", "-c", block(t, adopting, "sh", "order=PROOF"))
	proof.Env = append(os.Environ(), "DOWNSTREAM=http://"+address)
	out, err := proof.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	results, statuses := map[string]bool{}, []string{}
	for _, found := range regexp.MustCompile(`ch_\d+|-> (\d+)`).FindAllStringSubmatch(string(out), -1) {
		if status := found[1]; status != "" {
			statuses = append(statuses, status)
		} else {
			results[found[0]] = true
		}
	}
	if len(statuses) == 7 {
		slices.Sort(statuses[:2])
		if statuses[1] == "409" { // one of the two that came at once may be asked to come again
			statuses[1] = "200"
		}
	}
	if diff := cmp.Diff([]string{"200", "200", "200", "200", "422", "200", "200"}, statuses); diff != "" {
		t.Errorf("%s%s", diff, out)
	}
	if len(results) != 1 {
		t.Errorf("more than one result: %v\n%s", slices.Sorted(maps.Keys(results)), out)
	}
	if n := strings.Count(string(out), "NOT_FOUND"); n != 2 {
		t.Errorf("%d ids were not found, want 2\n%s", n, out)
	}
	if paid := rows(t, db, `SELECT count(*)::text FROM payments`); !slices.Equal(paid, []string{"1"}) {
		t.Errorf("%v payments", paid)
	}
}

// startService runs a downstream on a free port until the test ends, and returns its address.
func startService(t *testing.T, program []string, dsn string) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address = l.Addr().String()
	_ = l.Close()
	_, port, _ := net.SplitHostPort(address)
	var log bytes.Buffer
	// The shell ends the service once its input does: at the end of the test, or with this process, however that dies.
	service := exec.Command("sh", append([]string{"-c", `"$@" & cat; kill -9 $!; wait`, "sh"}, program...)...)
	service.Env = append(os.Environ(), "DATABASE_URL="+dsn, "LISTEN="+address, "PORT="+port)
	service.Stdout, service.Stderr = &log, &log
	input, err := service.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := service.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = input.Close()
		_ = service.Wait() // the service was killed
		if t.Failed() {
			t.Logf("the service said:\n%s", &log)
		}
	})
	eventually.True(t, "the service listens", func() bool {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
	return address
}
