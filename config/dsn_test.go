package config

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/lib/pq"

	"github.com/callreceipt/reconciler/internal/secretfile"
)

// The session parameters of every connection, as they stand in a URL.
const session = "&datestyle=ISO%2C+MDY&idle_in_transaction_session_timeout=60s&lock_timeout=5s"

func TestWhatADSNLeavesOutIsFilledIn(t *testing.T) {
	t.Parallel()
	for raw, want := range map[URL]string{
		"postgres://u:p%40@db.internal/n":                        "postgres://u:p%40@db.internal/n?application_name=reconciler&connect_timeout=10" + session + "&sslmode=verify-full&statement_timeout=60s&timezone=UTC",
		"postgresql://[::1]:5/n?sslmode=":                        "postgresql://[::1]:5/n?application_name=reconciler&connect_timeout=10" + session + "&sslmode=disable&statement_timeout=60s&timezone=UTC",
		"postgres://h/n?sslmode=require&STATEMENT_TIMEOUT=0":     "postgres://h/n?STATEMENT_TIMEOUT=0&application_name=reconciler&connect_timeout=10" + session + "&sslmode=require&timezone=UTC",
		"postgres://h/n?options=-c%20lock_timeout=1s&x.y=1":      "postgres://h/n?application_name=reconciler&connect_timeout=10&datestyle=ISO%2C+MDY&idle_in_transaction_session_timeout=60s&options=-c+lock_timeout%3D1s&sslmode=verify-full&statement_timeout=60s&timezone=UTC&x.y=1",
		"host=/tmp dbname=n password='it\\'s' connect_timeout=0": `host=/tmp dbname=n password=it\'s connect_timeout=0 sslmode=disable application_name=reconciler timezone=UTC datestyle='ISO, MDY' statement_timeout=60s lock_timeout=5s idle_in_transaction_session_timeout=60s`,
		"host=a,127.0.0.1 TimeZone=CET application_name=x datestyle='ISO, MDY' lock_timeout=1 statement_timeout=1 idle_in_transaction_session_timeout=1 connect_timeout=1": `host=a,127.0.0.1 TimeZone=CET application_name=x datestyle='ISO, MDY' lock_timeout=1 statement_timeout=1 idle_in_transaction_session_timeout=1 connect_timeout=1 sslmode=verify-full`,
	} {
		got, err := Database{URL: raw}.DSN()
		if err != nil || got != want {
			t.Errorf("%s\ngot  %s (%v)\nwant %s", string(raw), got, err, want)
		}
		if _, err := pq.NewConfig(got); err != nil {
			t.Errorf("%s: the driver refuses %s: %v", string(raw), got, err)
		}
	}
}

func TestTheNameOfADatabaseShowsNoCredentialsAndTellsDatabasesApart(t *testing.T) {
	t.Parallel()
	for raw, want := range map[URL]string{
		"postgres://app:secret@db.internal/orders":                 "db.internal:5432/orders",
		"postgres://other@db.internal:6432/orders?sslmode=disable": "db.internal:6432/orders",
		"postgres://app@[::1]:5/n":                                 "[::1]:5/n",
		"host=/run/postgresql dbname=n password=secret":            "/run/postgresql:5432/n",
		"host=a,b port=1,2 dbname=n user=u":                        "a:1,b:2/n",
		"hostaddr=10.0.0.1 user=app":                               "10.0.0.1:5432/app",
		"":                                                         "",
	} {
		if got := (Database{URL: raw}).Name(); got != want {
			t.Errorf("%s: %q, want %q", string(raw), got, want)
		}
	}
}

func TestOnlyLoopbackAndSocketsGoWithoutTLS(t *testing.T) {
	t.Parallel()
	for raw, want := range map[URL]pq.SSLMode{
		"postgres://localhost/n":                 "disable",
		"postgres://":                            "disable",
		"host='' dbname=n":                       "disable",
		"postgres:///n":                          "disable",
		"postgres://127.8.9.1/n":                 "disable",
		"postgres:///n?host=/var/run/postgresql": "disable",
		"host=@abstract":                         "disable",
		"hostaddr=127.0.0.1 host=db.internal":    "disable",
		"hostaddr=10.0.0.1 host=localhost":       "verify-full",
		"host=localhost,db.internal":             "verify-full",
		"host=localhost.evil.example":            "verify-full",
		"postgres://10.0.0.1/n":                  "verify-full",
		"postgres://db/n?sslrootcert=system":     "verify-full",
		"postgres://db/n?sslmode=disable":        "disable",
	} {
		dsn, err := Database{URL: raw}.DSN()
		if err != nil {
			t.Errorf("%s: %v", string(raw), err)
			continue
		}
		if cfg, err := pq.NewConfig(dsn); err != nil || cfg.SSLMode != want {
			t.Errorf("%s: sslmode %s (%v), want %s", string(raw), cfg.SSLMode, err, want)
		}
	}
	for _, raw := range []URL{"host=/tmp,db.internal", "host=/tmp,db.internal sslmode=verify-full"} {
		if dsn, err := (Database{URL: raw}).DSN(); err == nil || !strings.Contains(err.Error(), "turns encryption off") {
			t.Errorf("%s: got %q, %v", string(raw), dsn, err)
		}
	}
}

func TestTheHostAndModeOfTheDriversOwnVariablesCount(t *testing.T) {
	t.Setenv("PGHOST", "db.internal")
	dsn, err := Database{URL: "dbname=n"}.DSN()
	if err != nil || !strings.Contains(dsn, "sslmode=verify-full") {
		t.Errorf("a host from PGHOST: %s (%v)", dsn, err)
	}
	t.Setenv("PGSSLMODE", "require")
	dsn, err = Database{URL: "dbname=n"}.DSN()
	if err != nil || strings.Contains(dsn, "sslmode") {
		t.Errorf("a mode from PGSSLMODE: %s (%v)", dsn, err)
	}
}

func TestMalformedAddressesAreRefusedWithoutShowingThePassword(t *testing.T) {
	t.Parallel()
	for _, raw := range []string{
		"postgres://u:hush/hush@h/n", "postgres://u:12#hush@h/n", "postgres://u:12?hush@h/n", "postgres://u:12/hush@h/n", "postgres://u:hush%zz@h/n", "postgres://u:hush@h:hush/n",
		"u:hush@h/n", "postgress://u:hush@h/n", "password='hush", `password=hush\`, "password hush", "=hush", "hush",
		"mysql://u:hush@h/n?sslmode=disable", "password=hush port=hush", "password=hush sslmode=hush", "postgres://u:hush@h/n?sslmode=hush", "postgres://h/n?%zz=hush",
	} {
		_, err := load("database: {url: " + quote(raw) + "}")
		if err == nil || strings.Contains(err.Error(), "hush") || !strings.Contains(err.Error(), "c.yaml:1:12: database.url: is ") {
			t.Errorf("%s: got %v", raw, err)
		}
		if shown := URL(raw).String(); strings.Contains(shown, "hush") && !strings.Contains(raw, "=hush ") && !strings.Contains(raw, "=hush") {
			t.Errorf("%s is shown as %s", raw, shown)
		}
	}
	_, err := load("database: {url: 'host=h sslmode=full password=p'}")
	checkLines(t, err, `c.yaml:1:12: database.url: is refused by the driver: pq: wrong value for "sslmode": "full" is not supported; supported values are disable, allow, prefer, require, verify-full, or verify-ca`)
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

func TestPasswordsAreHiddenHoweverTheyArePrinted(t *testing.T) {
	t.Parallel()
	for raw, want := range map[URL]string{
		"":                                       "",
		"postgres://u:hush@h/n?sslmode=disable":  "postgres://u:redacted@h/n?sslmode=disable",
		"postgres://u@h/n":                       "postgres://u@h/n",
		"postgres://h/n?password=hush&a=b":       "postgres://h/n?a=b&password=redacted",
		"postgres://h/n?sslpassword=hush":        "postgres://h/n?sslpassword=redacted",
		"host=h password='hu sh' user=u":         "host=h password=redacted user=u",
		"https://hush@h/n?access_token=hush&n=1": "https://redacted@h/n?access_token=redacted&n=1",
		"postgres://u:12/hush@h/n":               hidden,
		"hush":                                   hidden,
	} {
		c := Config{Database: Database{URL: raw}}
		if got := c.Database.URL.String(); got != want {
			t.Errorf("%s is shown as %s, want %s", string(raw), got, want)
		}
		asJSON, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		asYAML, err := c.Redacted()
		if err != nil {
			t.Fatal(err)
		}
		var log strings.Builder
		slog.New(slog.NewTextHandler(&log, nil)).Info("x", "url", c.Database.URL, "config", c)
		for _, shown := range []string{string(asJSON), asYAML, log.String(), fmt.Sprintf("%v %+v %#v %v", c, &c, c, c.Database)} {
			if strings.Contains(shown, "hush") || strings.Contains(shown, "hu sh") {
				t.Errorf("the password is shown: %s", shown)
			}
		}
	}
}

func TestTheRedactedSampleIsTheSampleButForThePassword(t *testing.T) {
	t.Parallel()
	c, err := Load(Options{Path: "testdata/full.yaml"})
	if err != nil {
		t.Fatal(err)
	}
	shown, err := c.Redacted()
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("testdata/redacted.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if shown != string(want) {
		t.Errorf("got\n%s", shown)
	}
	asJSON, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{`"url":"postgres://reconciler:redacted@127.0.0.1:5432/reconciler"`, `"dedup_window":"168h"`, `"rate":50`, `"biz_id":"biz_id"`} {
		if !strings.Contains(string(asJSON), part) {
			t.Errorf("no %s in %s", part, asJSON)
		}
	}
}

func TestTheDatabaseURLComesFromItsFile(t *testing.T) {
	t.Parallel()
	file := write(t, "url", "postgres://u:hush@h/n?sslmode=disable\r\n")
	c := mustLoad(t, "database: {url_file: "+file+"}")
	dsn, err := c.Database.DSN()
	if err != nil || !strings.HasPrefix(dsn, "postgres://u:hush@h/n?") || !strings.Contains(dsn, "sslmode=disable") {
		t.Errorf("got %q, %v", dsn, err)
	}
	shown := fmt.Sprintf("%+v %#v", *c, *c)
	if strings.Contains(shown, "hush") {
		t.Errorf("the password is shown: %s", shown)
	}
	if err := c.RequireDatabase(); err != nil {
		t.Error(err)
	}
	for content, want := range map[string]string{
		"":       " is empty; write the value into it",
		"\n":     " is empty; write the value into it",
		"u:hush": " is not a well-formed",
		strings.Repeat("x", secretfile.MaxSize+1): " is larger than 64 KiB; is it the right file?",
	} {
		file := write(t, "url", content)
		_, err := load("database:\n  url_file: " + file)
		if err == nil || !strings.HasPrefix(err.Error(), "c.yaml:2:3: database.url_file:") || !strings.Contains(err.Error(), want[1:]) || strings.Contains(err.Error(), "hush") {
			t.Errorf("%.10q: got %v, want %q", content, err, want)
		}
	}
}

func TestAURLAndAFileForItAreRefusedAtOneLevelAndRankedAcrossLevels(t *testing.T) {
	t.Parallel()
	file := write(t, "url", "host=from-file")
	refused(t, "database: {url: host=h, url_file: "+file+"}", "c.yaml:1:25: database.url_file: is set together with url; remove one of them")
	_, err := load("", "RECONCILER_DATABASE_URL=host=h", "RECONCILER_DATABASE_URL_FILE="+file)
	checkLines(t, err, "environment: RECONCILER_DATABASE_URL_FILE: is set together with url; remove one of them")

	c := mustLoad(t, "database: {url_file: "+file+"}", "RECONCILER_DATABASE_URL=host=from-variable")
	if c.Database != (Database{URL: "host=from-variable"}) {
		t.Errorf("a variable over a file: %+v", c.Database)
	}
	c = mustLoad(t, "database: {url: host=h}", "RECONCILER_DATABASE_URL_FILE="+file)
	if dsn, err := c.Database.DSN(); err != nil || !strings.HasPrefix(dsn, "host=from-file ") {
		t.Errorf("a file named by a variable over a URL: %s (%v)", dsn, err)
	}
	c, err = build("c.yaml", nil, variablesOf([]string{"RECONCILER_DATABASE_URL_FILE=" + file}), func(c *Config) { c.Database.URL = "host=from-flag" })
	if err != nil || c.Database != (Database{URL: "host=from-flag"}) {
		t.Errorf("a flag over a variable: %+v (%v)", c, err)
	}
}

func TestTheDatabaseIsRequiredOnlyWhenAsked(t *testing.T) {
	t.Parallel()
	c := mustLoad(t, "")
	err := c.RequireDatabase()
	if err == nil || err.Error() != "no database is configured: set database.url or database.url_file in c.yaml, or the environment variable RECONCILER_DATABASE_URL" {
		t.Errorf("got %v", err)
	}
	c.Source.File = ""
	if err := c.RequireDatabase(); err == nil || !strings.Contains(err.Error(), "no configuration file was found") {
		t.Errorf("got %v", err)
	}
}

func TestAPartitionLivesInItsOwnDatabaseOrTheOneAtTheTop(t *testing.T) {
	t.Parallel()
	c := mustLoad(t, "database: {url: host=top}\n"+partition()+"- {table: c.d, archive: {dir: x}, database: {url: host=own}}")
	if got := c.DatabaseOf(c.Partitions[0]); got.URL != "host=top" {
		t.Errorf("got %+v", got)
	}
	if got := c.DatabaseOf(c.Partitions[1]); got.URL != "host=own" {
		t.Errorf("got %+v", got)
	}
}
