// Package idempotency is for a downstream: it executes each business intent once, however often and under however many callIds it
// arrives, and keeps a receipt of every call that did.
//
// The Guard decides. Its rules are the SQL functions of schema idempotency, in the database of the business, so that services in any
// language share them. Key, effect and receipt are one transaction.
//
//	arrival ──► claim the key ─ had ────► issued below the watermark? ─ yes ─► ErrExpired
//	                 │                        └─ no ─► execute, settle: SUCCESS, or FAILED by a *Refusal
//	                 │ taken                                       (Begin settles PROCESSING, and Complete or Fail ends it)
//	                 ▼
//	          who has it? ─ a transaction that is open ─► wait for it, at most Config.Wait, then ErrProcessing
//	                 │
//	                 ▼ committed
//	          its partition is gone ─────────► ErrExpired
//	          another payload or bizId ──────► ErrOtherPayload
//	          PROCESSING ────────────────────► ErrProcessing, with a receipt of this call that says so
//	          SUCCESS ───────────────────────► the first result, with a receipt of this call
//	          FAILED ────────────────────────► the same, or with Config.RerunFailed executed anew
//
//	PROCESSING ──Complete──► SUCCESS            FAILED ──executed anew──► SUCCESS, FAILED or PROCESSING
//	PROCESSING ──Fail──────► FAILED             SUCCESS is final; nothing ends PROCESSING by a timer
//
// Receipts answers the receipt query from what the Guard wrote. Relay brings the receipts to another database that is asked instead.
package idempotency
