package config

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// load builds a configuration from text as if it stood in c.yaml.
func load(text string, environ ...string) (*Config, error) {
	return build("c.yaml", []byte(text), variablesOf(environ), nil)
}

// mustLoad is load for text without problems.
func mustLoad(t *testing.T, text string, environ ...string) *Config {
	t.Helper()
	c, err := load(text, environ...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// refused checks that loading fails with exactly these lines.
func refused(t *testing.T, text string, want ...string) {
	t.Helper()
	_, err := load(text)
	checkLines(t, err, want...)
}

func checkLines(t *testing.T, err error, want ...string) {
	t.Helper()
	var problems *Problems
	if !errors.As(err, &problems) {
		t.Fatalf("got %v, want *Problems with %q", err, want)
	}
	if diff := cmp.Diff(want, strings.Split(err.Error(), "\n")); diff != "" {
		t.Fatalf("problems (-want +got):\n%s", diff)
	}
}

func write(t *testing.T, name, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// ignoreState leaves out what is not written in any file.
var ignoreState = cmp.Options{
	cmpopts.IgnoreUnexported(Config{}, Database{}),
	cmpopts.IgnoreFields(Config{}, "Source"),
}

func TestTheSampleOfTheDesignLoadsWithEveryKey(t *testing.T) {
	t.Parallel()
	c, err := Load(Options{Path: "testdata/full.yaml"})
	if err != nil {
		t.Fatal(err)
	}
	charge := defaultTool()
	charge.Retryable, charge.Idempotent = true, true
	charge.DedupWindow = Duration(168 * time.Hour)
	charge.IdempotencyTable = "idempotency.keys"
	charge.Schedule = "@every 30s"
	charge.Receipts.URL = "http://payment.internal/receipts/query"
	charge.Retry.Mode, charge.Retry.URL = RetryDispatch, "http://payment.internal/charge"
	keys := defaultPartition()
	keys.Table = "idempotency.keys"
	keys.Archive.Dir = "/var/lib/reconciler/archive"
	keys.Columns = Columns{Key: "idempotency_key", BizID: "biz_id", Status: "status"}
	keys.TerminalStatuses = []string{"SUCCESS", "FAILED"}
	want := defaultConfig()
	want.Database.URL = "postgres://reconciler:s3cret@127.0.0.1:5432/reconciler"
	want.Tools = map[string]Tool{"payment.charge": charge}
	want.Partitions = []Partition{keys}
	if diff := cmp.Diff(want, c, ignoreState); diff != "" {
		t.Errorf("the sample differs from the defaults and what it sets (-want +got):\n%s", diff)
	}
	if got := c.Source.String(); got != "testdata/full.yaml" {
		t.Errorf("source is %q", got)
	}
}

func TestFilesWithoutContentAreTheDefaults(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "\n\n", "# nothing\n# here\n", "---\n", "\ufeff", "\ufeff# x\n", "tools:\npartitions:\nserver:\n", "%YAML 1.2\n---\n", "{}"} {
		c, err := load(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if diff := cmp.Diff(defaultConfig(), c, ignoreState); diff != "" {
			t.Errorf("%q is not the defaults:\n%s", text, diff)
		}
	}
}

func TestTheFileComesFromTheFlagThenTheVariableThenTheWorkingDirectory(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	for name, listen := range map[string]string{"flag.yaml": ":1", "variable.yaml": ":2", "reconciler.yaml": ":3"} {
		if err := os.WriteFile(name, []byte(`server: {listen: "`+listen+`"}`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	environ := []string{"HOME=/", "RECONCILER_CONFIG=variable.yaml"}
	check := func(opt Options, listen, file string) {
		t.Helper()
		c, err := Load(opt)
		if err != nil {
			t.Fatal(err)
		}
		if c.Server.Listen != listen || c.Source.File != file {
			t.Errorf("listen %q from %q, want %q from %q", c.Server.Listen, c.Source.File, listen, file)
		}
	}
	check(Options{Path: "flag.yaml", Environ: environ}, ":1", "flag.yaml")
	check(Options{Environ: environ}, ":2", "variable.yaml")
	check(Options{Environ: []string{"RECONCILER_CONFIG="}}, ":3", "reconciler.yaml")
	if err := os.Remove("reconciler.yaml"); err != nil {
		t.Fatal(err)
	}
	check(Options{}, "127.0.0.1:9464", "")

	_, err := Load(Options{Path: "none.yaml"})
	checkLines(t, err, "none.yaml: does not exist; check the path (relative paths start at the working directory)")
	_, err = Load(Options{Path: dir})
	checkLines(t, err, dir+": cannot be read: is a directory")
}

func TestAFlagWinsOverTheEnvironmentAndTheEnvironmentOverTheFile(t *testing.T) {
	t.Parallel()
	file := write(t, "c.yaml", "server: {listen: ':1'}\nreconcile: {schedule: '@hourly', timezone: Europe/Berlin}\n")
	c, err := Load(Options{
		Path:     file,
		Environ:  []string{"RECONCILER_SERVER_LISTEN=:2", "RECONCILER_RECONCILE_SCHEDULE=@daily", "RECONCILER_RECONCILE_TIMEZONE="},
		Override: func(c *Config) { c.Server.Listen = ":3" },
	})
	if err != nil {
		t.Fatal(err)
	}
	if c.Server.Listen != ":3" || c.Reconcile.Schedule != "@daily" || c.Location().String() != "Europe/Berlin" {
		t.Errorf("got %+v %+v in %s", c.Server, c.Reconcile, c.Location())
	}
	if want := file + ", RECONCILER_RECONCILE_SCHEDULE, RECONCILER_SERVER_LISTEN"; c.Source.String() != want {
		t.Errorf("source is %q, want %q", c.Source, want)
	}
}

func TestProblemsOfAllSourcesComeTogetherInTheOrderTheyAreWritten(t *testing.T) {
	t.Parallel()
	_, err := build("c.yaml", []byte(`reconcile:
  timezone: Mars
  retention: 30
servr: {}
server: {listen: nowhere}
`), variablesOf([]string{"RECONCILER_SERVER_LISTN=x", "RECONCILER_RECONCILE_SCHEDULE=often"}),
		func(c *Config) { c.Server.Listen = "everywhere" })
	checkLines(t, err,
		`c.yaml:2:3: reconcile.timezone: "Mars" is not a known time zone; write UTC or a name such as Europe/Berlin`,
		`c.yaml:3:3: reconcile.retention: 30 has no unit; write 30s if seconds are meant`,
		`c.yaml:4:1: servr: unknown key; did you mean server?`,
		`environment: RECONCILER_RECONCILE_SCHEDULE: schedule "often" is not valid: expected exactly 5 fields, found 1: [often]; write five fields such as "*/5 * * * *", or "@every 30s"`,
		`environment: RECONCILER_SERVER_LISTN: unknown variable; the nearest known one is RECONCILER_SERVER_LISTEN; unset it or correct its name`,
		`flags: server.listen: "everywhere" is not host:port; write one like 127.0.0.1:9464 or [::1]:9464`,
	)
}

func TestAVariableIsJudgedAlsoWhereTheFileIsUnreadable(t *testing.T) {
	t.Parallel()
	_, err := load("server: {listen: 1}", "RECONCILER_SERVER_LISTEN=nowhere")
	checkLines(t, err,
		`c.yaml:1:10: server.listen: must be text, but YAML reads 1 as a number; write "1" in quotes`,
		`environment: RECONCILER_SERVER_LISTEN: "nowhere" is not host:port; write one like 127.0.0.1:9464 or [::1]:9464`,
	)
	_, err = load("", "RECONCILER_SERVER_LISTEN=:1\n")
	checkLines(t, err, "environment: RECONCILER_SERVER_LISTEN: contains a control character or a line break; remove it")
}

func TestVariablesOfKubernetesServicesAreIgnoredAndOthersAreNot(t *testing.T) {
	t.Parallel()
	mustLoad(t, "", "RECONCILER_SERVICE_HOST=10.0.0.1", "RECONCILER_SERVICE_PORT=9464", "RECONCILER_SERVICE_PORT_METRICS=9464",
		"RECONCILER_PORT=tcp://10.0.0.1:9464", "RECONCILER_PORT_9464_TCP=tcp://10.0.0.1:9464", "RECONCILER_PORT_9464_TCP_PROTO=tcp",
		"RECONCILER_PORT_9464_TCP_PORT=9464", "RECONCILER_PORT_9464_TCP_ADDR=10.0.0.1",
		"RECONCILER_DB_SERVICE_HOST=10.0.0.2", "RECONCILER_DB_PORT=tcp://10.0.0.2:5432", "RECONCILER_DB_PORT_5432_TCP_ADDR=10.0.0.2",
		"RECONCILER_PG_BIN=/usr/bin", "RECONCILER_PG_REPOSITORY=x", "RECONCILER_TEST_DATABASE_URL=x", "RECONCILE=x", "PATH=/bin")
	_, err := load("", "RECONCILER_SERVER_PORT=9464", "RECONCILER_DB_URL=postgres://u:hush@h/d")
	checkLines(t, err,
		"environment: RECONCILER_DB_URL: unknown variable; the nearest known one is RECONCILER_PG_BIN; unset it or correct its name",
		"environment: RECONCILER_SERVER_PORT: unknown variable; the nearest known one is RECONCILER_SERVER_LISTEN; unset it or correct its name",
	)
}

func TestAFileOfMoreThanAMebibyteIsRefused(t *testing.T) {
	t.Parallel()
	file := write(t, "big.yaml", strings.Repeat("#", largestFile))
	if _, err := Load(Options{Path: file}); err != nil {
		t.Errorf("exactly 1 MiB: %v", err)
	}
	file = write(t, "bigger.yaml", strings.Repeat("#", largestFile+1))
	_, err := Load(Options{Path: file})
	checkLines(t, err, file+": is larger than 1 MiB, which no configuration is; is it the right file?")
}

func TestProblemsAreMachineReadableToo(t *testing.T) {
	t.Parallel()
	_, err := load("server:\n  port: 1\n")
	got, jsonErr := json.Marshal(err)
	if jsonErr != nil {
		t.Fatal(jsonErr)
	}
	if want := `{"problems":[{"file":"c.yaml","line":2,"column":3,"key":"server.port","message":"unknown key; known here: listen, reload_token_file"}]}`; string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// FuzzLoad looks for input that makes loading panic, hang or show a password.
func FuzzLoad(f *testing.F) {
	sample, err := os.ReadFile("testdata/full.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range []string{
		string(sample), "", "a: *a", "tools: &a {<<: *a}", "tools: {x: &a {<<: [*a, *a]}}", "partitions: [{}, {table: a.b}]", "- - -", "? x",
		"reconcile: {schedule: CRON_TZ=UTC}", "tools: {x: {schedule: 'TZ=', settle: 1d, receipts: {url: 'http://[::1'}}}",
		"database: {url: 'host=/tmp,b password='}", "database:\n  url: |\n    postgres://a:b@c/d\n", "%YAML 1.2\n---\n", "a: !!str 1", "\xff\xfe", "a:\tb",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := build("f.yaml", data, nil, nil)
		if err != nil {
			var problems *Problems
			if !errors.As(err, &problems) || len(problems.List) == 0 {
				t.Fatalf("not a list of problems: %v", err)
			}
			for _, p := range problems.List {
				if strings.ContainsAny(p.String(), "\n\r") {
					t.Fatalf("a problem of more than one line: %q", p)
				}
			}
			return
		}
		shown, err := c.Redacted()
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(shown, hidden) {
			return
		}
		again, err := build("f.yaml", []byte(shown), nil, nil)
		if err != nil {
			t.Fatalf("what was shown cannot be loaded: %v\n%s", err, shown)
		}
		if diff := cmp.Diff(c, again, ignoreState, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("what was shown is something else:\n%s", diff)
		}
		c.Schedules()
	})
}
