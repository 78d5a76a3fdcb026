package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// healthLimit is shorter than any probe waits.
const healthLimit = 3 * time.Second

func (a *app) healthcheckCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "healthcheck",
		Short: "Ask the daemon on this machine whether it lives; exits 1 when it does not",
		Long: `Healthcheck asks /livez of the daemon that listens on server.listen. It is for images without a shell, and says nothing of
the database; for that ask /readyz.

Where RECONCILER_SERVER_LISTEN is set the file is not read: a daemon that refused to reload a broken one is alive.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			listen, err := a.listensOn()
			if err != nil {
				return err
			}
			return alive(cmd.Context(), listen)
		},
	}
}

// listensOn is server.listen. It is the variable's value, whatever the file says.
func (a *app) listensOn() (string, error) {
	for _, variable := range a.environ {
		if listen, ok := strings.CutPrefix(variable, "RECONCILER_SERVER_LISTEN="); ok && listen != "" {
			if _, _, err := net.SplitHostPort(listen); err != nil {
				return "", usage(fmt.Errorf("RECONCILER_SERVER_LISTEN: %w", err))
			}
			return listen, nil
		}
	}
	c, err := a.load()
	if err != nil {
		return "", err
	}
	return c.Server.Listen, nil
}

// alive asks whoever listens at listen, on this machine when it listens everywhere.
func alive(ctx context.Context, listen string) error {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return err
	}
	if ip := net.ParseIP(host); host == "" || ip.IsUnspecified() {
		host = "localhost"
	}
	ctx, cancel := context.WithTimeout(ctx, healthLimit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(host, port)+"/livez", nil)
	if err != nil {
		return err
	}
	// No proxy: the daemon is on this machine.
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		return fmt.Errorf("the daemon does not answer: %w", err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the daemon answers %s", resp.Status)
	}
	return nil
}
