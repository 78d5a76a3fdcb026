package chaos

import (
	"fmt"
	"testing"

	"github.com/jmoiron/sqlx"
)

// disagreements counts what may never be: each row of the result is one kind, with an example.
func disagreements(t testing.TB, db *sqlx.DB) {
	t.Helper()
	var found []struct{ Kind, Example string }
	err := db.Select(&found, `
		SELECT 'an intent was executed more than once' AS kind, idempotency_key AS example FROM effects GROUP BY 2 HAVING count(*) > 1
		UNION ALL
		SELECT 'an effect without its key', e.idempotency_key FROM effects e
			WHERE NOT EXISTS (SELECT FROM idempotency.keys k WHERE k.idempotency_key = e.idempotency_key AND k.status = 'SUCCESS' AND k.call_id = e.call_id)
		UNION ALL
		SELECT 'a key says SUCCESS and there is no effect', k.idempotency_key FROM idempotency.keys k
			WHERE k.status = 'SUCCESS' AND NOT EXISTS (SELECT FROM effects e WHERE e.idempotency_key = k.idempotency_key AND k.result ->> 'nonce' = e.nonce)
		UNION ALL
		SELECT 'a key was refused and there is an effect', k.idempotency_key FROM idempotency.keys k JOIN effects e USING (idempotency_key) WHERE k.status = 'FAILED'
		UNION ALL
		SELECT 'a key is PROCESSING in a guard that works in one transaction', k.idempotency_key FROM idempotency.keys k WHERE k.status = 'PROCESSING'
		UNION ALL
		SELECT 'a claim without its key', encode(c.key_digest, 'hex') FROM idempotency.claims c
			WHERE NOT EXISTS (SELECT FROM idempotency.keys k WHERE sha256(convert_to(k.idempotency_key, 'UTF8')) = c.key_digest AND k.created_at = c.created_at)
		UNION ALL
		SELECT 'two keys for one claim', k.idempotency_key FROM idempotency.keys k GROUP BY 2 HAVING count(*) > 1
		UNION ALL
		SELECT 'a receipt that is not what its key says', r.call_id FROM idempotency.receipts r
			LEFT JOIN idempotency.keys k USING (idempotency_key) WHERE (r.status, r.result::text) IS DISTINCT FROM (k.status, k.result::text)
		UNION ALL
		SELECT 'a key without the receipt of its call', k.idempotency_key FROM idempotency.keys k
			WHERE NOT EXISTS (SELECT FROM idempotency.receipts r WHERE r.call_id = k.call_id)
		LIMIT 20`)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		t.Errorf("%s: %s", f.Kind, f.Example)
	}
}

func number(t testing.TB, db *sqlx.DB, query string, args ...any) (n int) {
	t.Helper()
	if err := db.Get(&n, query, args...); err != nil {
		t.Fatal(fmt.Errorf("%s: %w", query, err))
	}
	return n
}
