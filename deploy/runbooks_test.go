package deploy

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/callreceipt/reconciler/internal/testdb"
)

// sections are the headings of every runbook, in this order.
var sections = []string{"What it means", "Look", "Do", "Never", "Escalate"}

func TestEveryRunbookHasItsSectionsAndAnAlert(t *testing.T) {
	t.Parallel()
	names := []string{"README"}
	for _, a := range alerts(t) {
		names = append(names, a.Alert)
	}
	heading := regexp.MustCompile(`(?m)^## (.+)$`)
	for _, file := range files(t, runbooks+"/*.md") {
		name := strings.TrimSuffix(filepath.Base(file), ".md")
		if !slices.Contains(names, name) {
			t.Errorf("%s: there is no such alert", file)
		}
		if name == "README" {
			continue
		}
		content := text(t, file)
		var found []string
		for _, h := range heading.FindAllStringSubmatch(content, -1) {
			found = append(found, h[1])
		}
		if !slices.Equal(found, sections) {
			t.Errorf("%s has the sections %q, want %q", file, found, sections)
		}
		if words := len(strings.Fields(content)); words > 450 {
			t.Errorf("%s has %d words; nobody reads that at three in the morning", file, words)
		}
	}
}

var sqlBlock = regexp.MustCompile("(?ms)^```sql\n(.*?)^```$")

func TestTheSQLOfRunbooksRuns(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	db.MustExec(`INSERT INTO reconciler.pending_confirmations (call_id, biz_id, tool, operation) VALUES ('ORD-3-0001', 'ORD-3', 'payment.charge', 'charge')`)
	ran := 0
	for _, file := range files(t, runbooks+"/*.md") {
		for _, block := range sqlBlock.FindAllStringSubmatch(text(t, file), -1) {
			ran++
			if _, err := db.ExecContext(t.Context(), block[1]); err != nil {
				t.Errorf("%s: %v in\n%s", file, err, block[1])
			}
		}
	}
	if ran < 20 {
		t.Errorf("only %d statements were found", ran)
	}
}

var (
	code    = regexp.MustCompile("(?ms)^```sh\n(.*?)^```$|`(reconciler [^`]+)`")
	command = regexp.MustCompile(`(?m)(?:^|[ /])reconciler ((?:[a-z]+ ?)+)((?: ?--?[a-z-]+(?:[ =][^-\s]\S*)?)*)`)
	flag    = regexp.MustCompile(`--?([a-z-]+)`)
	starts  = regexp.MustCompile(`(?m)^(?:ExecStart=|\* ).*$`) // the lines of units and crontabs that start something
	use     = regexp.MustCompile(`(?:Use:\s+|group\()"([a-z]+)`)
	flagged = regexp.MustCompile(`Flags\(\)\.\w+\([^"\n]*"([a-z-]+)"|flags\.\w+\([^"\n]*"([a-z-]+)"`)
)

// TestTheCommandsOfRunbooksExist compares them with the sources of the commands, whose package nobody can import.
func TestTheCommandsOfRunbooksExist(t *testing.T) {
	t.Parallel()
	verbs, flags := map[string]bool{}, map[string]bool{}
	for _, file := range files(t, "../cmd/reconciler/*.go") {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		for _, found := range use.FindAllStringSubmatch(text(t, file), -1) {
			verbs[found[1]] = true
		}
		for _, found := range flagged.FindAllStringSubmatch(text(t, file), -1) {
			flags[found[1]+found[2]] = true
		}
	}
	checked := 0
	for _, file := range append(files(t, runbooks+"/*.md"), "cron/crontab", "systemd/reconciler.service", "systemd/reconciler-run.service") {
		content := text(t, file)
		if filepath.Ext(file) != ".md" {
			content = "```sh\n" + strings.Join(starts.FindAllString(content, -1), "\n") + "\n```"
		}
		for _, found := range code.FindAllStringSubmatch(content, -1) {
			for _, c := range command.FindAllStringSubmatch(found[1]+found[2], -1) {
				checked++
				for i, verb := range strings.Fields(c[1]) {
					if !verbs[verb] && i < 2 {
						t.Errorf("%s: there is no command %q in %q", file, verb, c[0])
					}
				}
				for _, f := range flag.FindAllStringSubmatch(c[2], -1) {
					if !flags[f[1]] {
						t.Errorf("%s: there is no flag %q in %q", file, f[1], c[0])
					}
				}
			}
		}
	}
	if checked < 40 {
		t.Errorf("only %d commands were found", checked)
	}
}

var (
	link       = regexp.MustCompile(`\]\(([^)#\s]*)(?:#([^)\s]+))?\)`)
	fence      = regexp.MustCompile("(?ms)^```.*?^```$")
	headline   = regexp.MustCompile(`(?m)^#+ (.+)$`)
	notInNames = regexp.MustCompile(`[^a-z0-9 _-]`)
)

// anchors are the names that headings get.
func anchors(document string) (names []string) {
	for _, h := range headline.FindAllStringSubmatch(fence.ReplaceAllString(document, ""), -1) {
		names = append(names, strings.ReplaceAll(notInNames.ReplaceAllString(strings.ToLower(h[1]), ""), " ", "-"))
	}
	return names
}

func TestEveryLinkLeadsSomewhere(t *testing.T) {
	t.Parallel()
	for _, from := range append(files(t, runbooks+"/*.md"), "README.md") {
		for _, found := range link.FindAllStringSubmatch(fence.ReplaceAllString(text(t, from), ""), -1) {
			if strings.Contains(found[1], "://") {
				continue
			}
			target := from
			if found[1] != "" {
				target = filepath.Join(filepath.Dir(from), found[1])
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s: %v", from, found[1], err)
				continue
			}
			if found[2] != "" && !slices.Contains(anchors(text(t, target)), found[2]) {
				t.Errorf("%s links to #%s, and %s has no such heading", from, found[2], target)
			}
		}
	}
}
