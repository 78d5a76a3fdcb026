// Package pause waits, for no longer than anybody wants.
package pause

import (
	"context"
	"time"
)

// For waits so long. When ctx ends first, it returns at once, with the cause.
func For(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
