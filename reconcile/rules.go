package reconcile

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// rules are what one pass decides by, from its first verdict to its last. The digest goes to the ledger and the text to the table of
// runs, so that each verdict can be replayed by the rules it was made by.
type rules struct {
	policy Policy
	digest string
	text   []byte
}

// adopt makes the rules of the pass from the tool's policy and the archive watermark. Without the watermark nothing is decided: the
// pass fails.
func (p *pass) adopt(ctx context.Context) error {
	p.policy = p.cfg.Policy
	if p.cfg.IdempotencyTable != "" {
		watermark, err := p.endOffers(ctx)
		if err != nil {
			return err
		}
		p.policy.Watermark = watermark
	}
	text, err := json.Marshal(p.policy)
	if err != nil {
		return fmt.Errorf("writing down the rules of %s: %w", p.cfg.Tool, err)
	}
	p.text, p.digest = text, p.policy.Digest()
	return nil
}

// endOffers ends the offers below the watermark as it stands now, whenever they were made and by whatever rules, and returns it. Whoever
// takes retries for an orchestrator knows neither the table nor the rules; the deadline in the row is what everybody goes by. The next
// look says what becomes of the calls.
func (p *pass) endOffers(ctx context.Context) (watermark time.Time, err error) {
	if p.cfg.IdempotencyTable == "" {
		return time.Time{}, nil
	}
	watermark, err = p.store.Watermark(ctx, p.cfg.IdempotencyTable)
	if err != nil || watermark.IsZero() || p.limits.DryRun {
		return watermark, err
	}
	ended, err := p.store.EndOffers(ctx, p.cfg.Tool, watermark)
	if ended > 0 {
		p.cfg.Log.Info("calls that waited to be sent again were issued before the archive watermark; nobody may send them any more",
			"tool", p.cfg.Tool, "table", p.cfg.IdempotencyTable, "watermark", watermark, "calls", ended)
	}
	return watermark, err
}
