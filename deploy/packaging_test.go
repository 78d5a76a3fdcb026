package deploy

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/callreceipt/reconciler/config" //nolint:depguard // what is deployed is loaded as the command loads it
)

// drain is how long the daemon finishes what it has in hand, and then shows its metrics once more.
const drain = 35 * time.Second

func loadConfig(t *testing.T, file string) *config.Config {
	t.Helper()
	c, err := config.Load(config.Options{Path: file, Environ: []string{"RECONCILER_DATABASE_URL=postgres://app@db.internal/orders"}})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestTheConfigurationForKubernetesLoads(t *testing.T) {
	t.Parallel()
	if c := loadConfig(t, "kubernetes/base/reconciler.yaml"); len(c.Tools) == 0 {
		t.Error("it has no tools")
	}
}

func TestTheImageIsBuiltByTheScriptThatIsMeasured(t *testing.T) {
	t.Parallel()
	dockerfile := text(t, "../Dockerfile")
	for _, part := range []string{
		"deploy/build.sh /out/reconciler", "COPY --from=build /out/reconciler /reconciler", "USER 65532:65532", `ENTRYPOINT ["/reconciler"]`,
		`CMD ["/reconciler", "healthcheck"]`, "static-debian12:nonroot",
	} {
		if !strings.Contains(dockerfile, part) {
			t.Errorf("the Dockerfile lacks %s", part)
		}
	}
	if !strings.Contains(text(t, "image.sh"), "deploy/build.sh") {
		t.Error("image.sh does not call build.sh")
	}
	for _, variable := range regexp.MustCompile(`-X main\.(\w+)=`).FindAllStringSubmatch(text(t, "build.sh"), -1) {
		if !strings.Contains(text(t, "../cmd/reconciler/version.go"), "var "+variable[1]+" =") {
			t.Errorf("build.sh sets main.%s, and there is no such variable", variable[1])
		}
	}
}

func TestThePortIsTheDefaultEverywhere(t *testing.T) {
	t.Parallel()
	listen := loadConfig(t, "kubernetes/base/reconciler.yaml").Server.Listen
	port := listen[strings.LastIndex(listen, ":")+1:]
	for file, part := range map[string]string{
		"../Dockerfile": "EXPOSE " + port, "kubernetes/daemon/deployment.yaml": "containerPort: " + port,
		"kubernetes/daemon/service.yaml": "port: " + port, "prometheus/scrape.yml": ":" + port,
	} {
		if !strings.Contains(text(t, file), part) {
			t.Errorf("%s lacks %s", file, part)
		}
	}
	if !strings.Contains(text(t, "../Dockerfile"), "RECONCILER_SERVER_LISTEN=:"+port+"\n") {
		t.Error("the image does not listen where it can be reached")
	}
}

func TestTheContextOfTheImageHoldsNoConfigurationAndEverythingItNeeds(t *testing.T) {
	t.Parallel()
	patterns := strings.Fields(text(t, "../.dockerignore"))
	for _, secret := range []string{"reconciler.yaml", ".git"} {
		if !slices.Contains(patterns, secret) {
			t.Errorf(".dockerignore lets %s in", secret)
		}
	}
	for _, needed := range []string{"go.mod", "go.sum", "cmd", "deploy", "deploy/build.sh"} {
		if slices.Contains(patterns, needed) {
			t.Errorf(".dockerignore keeps %s out", needed)
		}
	}
}

// directives are the lines NAME=VALUE of a unit; a name may stand there several times.
func directives(t *testing.T, file string) map[string][]string {
	t.Helper()
	found := map[string][]string{}
	for line := range strings.Lines(text(t, file)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(line, "#") {
			found[name] = append(found[name], value)
		}
	}
	return found
}

func TestTheUnitsAreHardenedAlike(t *testing.T) {
	t.Parallel()
	daemon := directives(t, "systemd/reconciler.service")
	ofOne := []string{
		"Description", "ExecStart", "ExecReload", "Restart", "RestartSec", "StartLimitIntervalSec", "Type", "WantedBy",
		"SuccessExitStatus", "TimeoutStartSec", "StateDirectory", "StateDirectoryMode",
	}
	for _, name := range ofOne {
		delete(daemon, name)
	}
	for _, file := range []string{"reconciler-run.service", "reconciler-archive.service"} {
		other := directives(t, "systemd/"+file)
		for _, name := range ofOne {
			delete(other, name)
		}
		if diff := cmp.Diff(daemon, other); diff != "" {
			t.Errorf("reconciler.service (-) and %s (+): %s", file, diff)
		}
	}
	for _, name := range []string{"ProtectSystem", "NoNewPrivileges", "SystemCallFilter", "LoadCredential"} {
		if len(daemon[name]) == 0 {
			t.Errorf("there is no %s", name)
		}
	}
}

func TestUnitsAndPodsAreGivenTheTimeToFinish(t *testing.T) {
	t.Parallel()
	limit := regexp.MustCompile(`(?m)^\s*(?:TimeoutStopSec=|terminationGracePeriodSeconds: )(\d+)`)
	checked := 0
	for _, file := range append(files(t, "systemd/*.service"), files(t, "kubernetes/*/*.yaml")...) {
		for _, found := range limit.FindAllStringSubmatch(text(t, file), -1) {
			checked++
			if seconds, err := strconv.Atoi(found[1]); err != nil || time.Duration(seconds)*time.Second < drain+10*time.Second {
				t.Errorf("%s gives %s seconds; finishing takes up to %s", file, found[1], drain)
			}
		}
	}
	if checked != 6 {
		t.Errorf("%d limits were found, not 6", checked)
	}
}
