package pending_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/internal/testdb"
	"github.com/callreceipt/reconciler/pending"
)

const keys = "idempotency.keys"

// raise sets the archive watermark of the keys as an archiver does.
func raise(db *sqlx.DB, to string) {
	db.MustExec(`INSERT INTO reconciler.archive_watermarks (table_name, watermark) VALUES ($1, `+to+`)
		ON CONFLICT (table_name) DO UPDATE SET watermark = excluded.watermark`, keys)
}

func TestTheWatermarkIsThatOfTheTableAndNoneWithoutARow(t *testing.T) {
	t.Parallel()
	dsn := testdb.URL(t)
	db := testdb.Open(t, with(t, dsn, "TimeZone", "Asia/Kolkata"))
	store := pending.NewStore(db)
	if got, err := store.Watermark(t.Context(), keys); err != nil || !got.IsZero() {
		t.Errorf("without a row: %s %v", got, err)
	}
	db.MustExec(`INSERT INTO reconciler.archive_watermarks (table_name, watermark) VALUES ('other.keys', '2020-01-01Z')`)
	for text, want := range map[string]string{
		"'2024-05-01 10:00:00.123456+05:30'": "2024-05-01T04:30:00.123456Z",
		"'infinity'":                         "9999-12-31T00:00:00Z",
		"'-infinity'":                        "0001-01-02T00:00:00Z",
		"'0044-03-15 BC'":                    "0001-01-02T00:00:00Z",
	} {
		raise(db, text)
		if got, err := store.Watermark(t.Context(), keys); err != nil || got.Format(time.RFC3339Nano) != want {
			t.Errorf("%s is read as %s, want %s; %v", text, got.Format(time.RFC3339Nano), want, err)
		}
	}
	db.MustExec(`DROP TABLE reconciler.archive_watermarks`)
	if _, err := store.Watermark(t.Context(), keys); err == nil || !strings.Contains(err.Error(), "reading the archive watermark of idempotency.keys") {
		t.Errorf("without the table: %v", err)
	}
}

func TestTheReconcilerTakesNoCallIssuedBeforeTheWatermarkAsItStandsThen(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	store := pending.NewStore(db)
	raise(db, "'2024-05-01 12:00Z'")
	park(t, db, "below", "status='RETRY'", "request='{}'", "issued_at='2024-05-01 11:59:59.999999Z'")
	// A caller whose clock is ahead gains nothing.
	park(t, db, "ahead", "status='RETRY'", "request='{}'", "issued_at='2024-05-01 13:00Z'", "created_at='2024-05-01 11:00Z'")
	park(t, db, "forever", "status='RETRY'", "request='{}'", "issued_at='-infinity'")
	if r, err := store.TakeRetry(t.Context(), tool, keys, pending.Spacing{}); r != nil || err != nil {
		t.Errorf("taken below the watermark: %+v %v", r, err)
	}
	park(t, db, "at", "status='RETRY'", "request='{}'", "issued_at='2024-05-01 12:00Z'")
	if r, err := store.TakeRetry(t.Context(), tool, keys, pending.Spacing{}); err != nil || r == nil || r.CallID != "at" {
		t.Errorf("at the watermark: %+v %v", r, err)
	}
	// It belongs to one table.
	for range 3 {
		if r, err := store.TakeRetry(t.Context(), tool, "other.keys", pending.Spacing{}); err != nil || r == nil {
			t.Errorf("by the watermark of another table: %+v %v", r, err)
		}
	}
}

func TestAnEndedOfferIsNotHandedOutAndTheDatabaseRefusesToSendIt(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	store := pending.NewStore(db)
	watermark := time.Date(2024, 5, 1, 12, 0, 0, 0, time.UTC)
	for id, set := range map[string][]string{
		"below":    {"issued_at='2024-05-01 11:59:59.999999Z'", "retry_before=now() + interval '1 hour'", "next_check_at=now() + interval '1 hour'"},
		"by hand":  {"issued_at='2024-05-01 11:00Z'"},
		"ahead":    {"issued_at='2024-06-01Z'", "created_at='2024-05-01 11:00Z'", "retry_before='infinity'"},
		"over":     {"issued_at='2024-05-01 11:00Z'", "retry_before='2024-05-02'"},
		"at":       {"issued_at='2024-05-01 12:00Z'", "retry_before=now() + interval '1 hour'"},
		"no offer": {"issued_at='2024-05-01 11:00Z'", "status='PENDING'"},
		"person's": {"issued_at='2024-05-01 11:00Z'", "status='MANUAL'"},
		"other's":  {"issued_at='2024-05-01 11:00Z'", "tool='payment.refund'"},
	} {
		if !slices.ContainsFunc(set, func(s string) bool { return strings.HasPrefix(s, "status") }) {
			set = append(set, "status='RETRY'")
		}
		park(t, db, id, set...)
	}
	ended, err := store.EndOffers(t.Context(), tool, watermark)
	if err != nil || ended != 3 {
		t.Errorf("%d ended, want 3; %v", ended, err)
	}
	var rows []string
	err = db.Select(&rows, `SELECT call_id FROM reconciler.pending_confirmations
		WHERE version = 1 AND status = 'RETRY' AND retry_before <= clock_timestamp() AND next_check_at <= clock_timestamp() ORDER BY 1`)
	if diff := cmp.Diff([]string{"ahead", "below", "by hand"}, rows); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	if n := value[int](t, db, `SELECT count(*) FROM reconciler.pending_confirmations WHERE version > 0`); n != 3 {
		t.Errorf("%d rows were touched", n)
	}
	if again, err := store.EndOffers(t.Context(), tool, watermark); err != nil || again != 0 {
		t.Errorf("%d ended twice, %v", again, err)
	}
	taken, err := pending.TakeRetries(t.Context(), db, tool, 100)
	if err != nil || len(taken) != 1 || taken[0].CallID != "at" {
		t.Errorf("handed out %+v %v", taken, err)
	}
	_, err = db.Exec(`UPDATE reconciler.pending_confirmations SET status = 'PENDING', attempt = attempt + 1 WHERE call_id = 'by hand'`)
	if err == nil || !strings.Contains(err.Error(), "could be sent again only before") {
		t.Errorf("sent without looking: %v", err)
	}
}

func TestAnOfferThatSomebodyIsTakingDelaysTheEndOfNoOther(t *testing.T) {
	t.Parallel()
	dsn := testdb.URL(t)
	db := testdb.Open(t, dsn)
	park(t, db, "C1", "status='RETRY'")
	park(t, db, "C2", "status='RETRY'")
	tx := db.MustBegin()
	defer func() { _ = tx.Rollback() }()
	tx.MustExec(`SELECT FROM reconciler.pending_confirmations WHERE call_id = 'C1' FOR UPDATE`)
	ended, err := pending.NewStore(testdb.Open(t, with(t, dsn, "lock_timeout", "100ms"))).EndOffers(t.Context(), tool, time.Now().Add(time.Hour))
	if err != nil || ended != 1 {
		t.Errorf("%d ended, %v", ended, err)
	}
}

func TestAnyNumberOfOffersEnds(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	db.MustExec(`INSERT INTO reconciler.pending_confirmations (call_id, biz_id, tool, operation, status)
		SELECT 'C' || n, 'B' || n, $1, 'charge', 'RETRY' FROM generate_series(1, 10001) n`, tool)
	if ended, err := pending.NewStore(db).EndOffers(t.Context(), tool, time.Now().Add(time.Hour)); err != nil || ended != 10_001 {
		t.Errorf("%d ended, %v", ended, err)
	}
}
