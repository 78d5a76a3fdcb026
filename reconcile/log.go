package reconcile

import (
	"context"
	"log/slog"

	"github.com/callreceipt/reconciler/internal/printable"
	"github.com/callreceipt/reconciler/pending"
)

// Prefix starts every log line about a call, so that grep finds a whole intent: [call=…][biz=…][try=2]. An id with anything
// but plain characters is quoted and escaped: it can neither break the line nor pass for another id.
func Prefix(c pending.Call) string {
	return printable.Call(c.CallID, c.BizID, c.Attempt)
}

// say logs what was written: what a person should see at info, the rest at debug.
func (p *pass) say(j judged) {
	level := slog.LevelDebug
	switch {
	case j.verdict.Anomaly != NoAnomaly:
		level = slog.LevelWarn
	case j.verdict.Action == Escalate:
		level = slog.LevelInfo
	}
	if !p.cfg.Log.Enabled(context.Background(), level) {
		return
	}
	c := j.change
	attrs := []any{"tool", c.Call.Tool, "status", string(c.Status()), "reason", string(j.verdict.Reason)}
	if c.LastError != "" {
		attrs = append(attrs, "error", c.LastError)
	}
	if j.verdict.Anomaly == CallIDChanged {
		attrs = append(attrs, "executed_as", printable.ID(j.verdict.Proof.CallID))
	}
	p.cfg.Log.Log(context.Background(), level, Prefix(c.Call)+" "+said(j.verdict), attrs...)
}

func said(v Verdict) string {
	switch v.Action {
	case Succeed, Fail:
		return "settled"
	case Retry:
		return "to be sent again"
	case Escalate:
		return "needs a person"
	case Reopen:
		return "taken back from retry"
	case Wait, Leave:
	}
	return "waits"
}
