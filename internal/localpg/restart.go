package localpg

import (
	"context"
	"fmt"
	"syscall"
)

// Restart ends every process of the server at once, as `pg_ctl restart -m immediate` does, and returns when it accepts connections
// again at the same address. What was committed is still there. After an error no process is left, and there is only Stop to call.
// It must not be called together with Stop.
func (s *Server) Restart(ctx context.Context) error {
	if !s.postgres.end(syscall.SIGQUIT, syscall.SIGKILL) {
		return fmt.Errorf("restarting local PostgreSQL: process %d survived SIGKILL", s.Pid())
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	if err := s.run(ctx); err != nil {
		return fmt.Errorf("restarting local PostgreSQL: %w", err)
	}
	return nil
}
