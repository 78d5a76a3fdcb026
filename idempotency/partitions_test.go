package idempotency_test

import "testing"

func TestADefaultPartitionThatHoldsTodayKeepsNoOtherDayFromBeingMade(t *testing.T) {
	t.Parallel()
	s := open(t)
	s.detachAll(t)
	s.db.MustExec(`CREATE TABLE idempotency.rest PARTITION OF idempotency.keys DEFAULT`)
	first := s.must(t, call(), charge("1"))
	if n := s.count(t, `SELECT idempotency.ensure_partitions(14)`); n != 15 {
		t.Errorf("%d days were made, want yesterday and the 14 to come", n)
	}
	if again := s.must(t, call(), never(t)); wire(t, again) != wire(t, first) {
		t.Errorf("%s and %s", wire(t, first), wire(t, again))
	}
}

// In another style a zone is written by its abbreviation, and CST is read as that of Chicago.
func TestTheDaysAreThoseOfUTCWhateverTheSessionIsSetTo(t *testing.T) {
	t.Parallel()
	s := open(t)
	s.detachAll(t)
	tx := s.db.MustBegin()
	tx.MustExec(`SET LOCAL TimeZone = 'Asia/Shanghai'; SET LOCAL DateStyle = 'SQL, DMY'; SELECT idempotency.ensure_partitions(1)`)
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	tx = s.db.MustBegin()
	defer func() { _ = tx.Rollback() }()
	tx.MustExec(`SET LOCAL TimeZone = 'UTC'`)
	var n int
	if err := tx.Get(&n, `SELECT count(*) FROM pg_class JOIN pg_inherits ON oid = inhrelid WHERE inhparent = 'idempotency.keys'::regclass
		AND pg_get_expr(relpartbound, oid) LIKE '%00:00:00+00%00:00:00+00%'`); err != nil || n != 3 {
		t.Errorf("%d whole days were made, want 3; %v", n, err)
	}
}
