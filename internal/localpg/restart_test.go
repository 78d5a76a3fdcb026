package localpg

import (
	"syscall"
	"testing"
)

func TestARestartedServerIsWhereItWasWithWhatWasCommitted(t *testing.T) {
	t.Parallel()
	l := testLauncher(t)
	s := startTest(t, l, Options{Settings: map[string]string{"work_mem": "7MB"}})
	dsn, before := s.DSN(""), s.Pid()
	db := open(t, dsn)
	if _, err := db.ExecContext(t.Context(), "CREATE TABLE kept AS SELECT 7 AS n"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if s.DSN("") != dsn || s.Pid() == before || syscall.Kill(before, 0) == nil {
		t.Errorf("process %d became %d", before, s.Pid())
	}
	if got := query(t, dsn, "SELECT n || ' ' || current_setting('work_mem') FROM kept"); got != "7 7MB" {
		t.Errorf("it has %q, want 7 and its setting", got)
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, l.temp[0])
}
