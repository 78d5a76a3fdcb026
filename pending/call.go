// Package pending is the pending-confirmation table: the calls whose outcome their caller does not know.
//
//	                    ┌────────── taken and sent again, attempt+1 ──────────┐
//	                    ▼                                                     │
//	Suspend ──►  PENDING ──── not found, settled, may be sent again ────►  RETRY
//	                │  ▲                                                      │
//	                │  └────────── a receipt turned up meanwhile ─────────────┤
//	                ├───── receipt ────►  SUCCESS, FAILED (final)  ◄──────────┤
//	                │                            ▲                            │
//	                └── rules cannot decide ──► MANUAL ◄── too late to send ──┘
//	                                             │ looked at slowly; a receipt of this call settles it
//
// The database itself refuses what no client may do: another id, a way out of SUCCESS or FAILED, a lower attempt
// or version, the deletion of an open row. Every write names the version it was decided from, so a writer that
// slept, or lost a race, changes nothing.
//
// The package is meant to be embedded by callers as well: it imports no daemon code.
package pending

import (
	"time"
)

// Status is where a call stands. Only StatusSuccess and StatusFailed are terminal.
type Status string

// The statuses of DESIGN section 3.1.
const (
	StatusPending Status = "PENDING"
	StatusRetry   Status = "RETRY"
	StatusSuccess Status = "SUCCESS"
	StatusFailed  Status = "FAILED"
	StatusManual  Status = "MANUAL"
)

// Statuses lists every status in the order in which people think of them.
var Statuses = []Status{StatusPending, StatusRetry, StatusManual, StatusSuccess, StatusFailed}

// Terminal reports whether nothing may change the status any more.
func (s Status) Terminal() bool { return s == StatusSuccess || s == StatusFailed }

// Call is what the table knows of one call, without the bodies of its request and receipt.
// Instants beyond the years 1 to 9999, which PostgreSQL can hold and Go cannot, are moved to that edge.
type Call struct {
	CallID         string     `db:"call_id" json:"call_id"`
	BizID          string     `db:"biz_id" json:"biz_id"`
	Tool           string     `db:"tool" json:"tool"`
	Operation      string     `db:"operation" json:"operation"`
	IdempotencyKey string     `db:"idempotency_key" json:"idempotency_key"`
	Status         Status     `db:"status" json:"status"`
	Reason         string     `db:"reason" json:"reason"`   // "" before the first look
	Attempt        int        `db:"attempt" json:"attempt"` // sends so far, from 1
	IssuedAt       time.Time  `db:"issued_at" json:"issued_at"`
	LastSentAt     time.Time  `db:"last_sent_at" json:"last_sent_at"`
	HasRequest     bool       `db:"has_request" json:"has_request"`
	Checks         int        `db:"checks" json:"checks"`
	Unanswered     int        `db:"unanswered" json:"unanswered"`
	NotFoundCount  int        `db:"not_found_count" json:"not_found_count"`
	NotFoundSince  *time.Time `db:"not_found_since" json:"not_found_since"`
	Version        int64      `db:"version" json:"version"`
	CreatedAt      time.Time  `db:"created_at" json:"created_at"`
}

// callColumns is the list that Call scans, for a table alias p.
var callColumns = `p.call_id, p.biz_id, p.tool, p.operation, p.idempotency_key, p.status, coalesce(p.reason, '') AS reason, p.attempt, ` +
	within(`issued_at`) + `, ` + within(`last_sent_at`) + `, p.request IS NOT NULL AS has_request, p.checks, p.unanswered, p.not_found_count, ` + within(`not_found_since`) + `, p.version, ` + within(`created_at`)

// within moves an instant to the years that Go's time and JSON can spell, in every zone a session may have; null stays null.
func within(column string) string {
	return `CASE WHEN p.` + column + ` IS NOT NULL THEN greatest(least(p.` + column + `, '9999-12-31Z'), '0001-01-02Z') END AS ` + column
}

// open is the predicate of the partial index behind every scan; it is spelled the same everywhere.
const open = `p.status IN ('PENDING', 'RETRY', 'MANUAL')`
