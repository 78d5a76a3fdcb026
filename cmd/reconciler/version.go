package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is set by the linker in a release; otherwise the module's own version stands in.
var version = ""

// build describes this binary; its field names are a contract.
type build struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func buildInfo() build {
	b := build{Version: version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if b.Version == "" {
		b.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Revision = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	return b
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Show what this binary is", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			b := buildInfo()
			if a.output != "table" {
				return a.printJSON(b)
			}
			fmt.Fprintf(a.out, "reconciler %s (%s, %s)\n", b.Version, b.Go, b.Platform)
			return nil
		},
	}
}
