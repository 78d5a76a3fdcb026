package reconcile

// Reason says why a call is where it is. The same word goes to the row, the ledger, the log and the metric label.
type Reason string

// Every reason. The number is the rule of Decide that gives it.
const (
	ReasonConflictingReceipts Reason = "conflicting_receipts"  // 2
	ReasonReceiptSuccess      Reason = "receipt_success"       // 3
	ReasonReceiptFailed       Reason = "receipt_failed"        // 4
	ReasonFailedRetryable     Reason = "failed_retryable"      // 4
	ReasonStaleFailure        Reason = "stale_failure"         // 4
	ReasonProcessing          Reason = "processing"            // 5
	ReasonProcessingTooLong   Reason = "processing_too_long"   // 5, 7
	ReasonSettledByOtherCall  Reason = "settled_by_other_call" // 6
	ReasonOtherCallProcessing Reason = "other_call_processing" // 7
	ReasonUnmatchedReceipts   Reason = "unmatched_receipts"    // 8
	ReasonNotFoundUnsettled   Reason = "not_found_unsettled"   // 9
	ReasonSentInFuture        Reason = "sent_in_future"        // 9: last_sent_at never comes to pass
	ReasonNotFound            Reason = "not_found"             // 10
	ReasonNotRetryable        Reason = "not_retryable"         // 11
	ReasonAttemptsExhausted   Reason = "attempts_exhausted"    // 11
	ReasonDedupWindowPassed   Reason = "dedup_window_passed"   // 11
	ReasonRequestMissing      Reason = "request_missing"       // 11
	ReasonUnanswered          Reason = "unanswered"            // 12
	ReasonUnwritable          Reason = "unwritable"            // the database refuses what the verdict would store
)
