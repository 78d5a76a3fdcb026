package deploy

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

type datasource struct{ Type, UID string }

type target struct {
	RefID, Expr string
	Datasource  datasource
}

type panel struct {
	ID                       int
	Type, Title, Description string
	GridPos                  struct{ H, W, X, Y int }
	Datasource               datasource
	Targets                  []target
	FieldConfig              struct {
		Defaults struct{ Unit string }
	}
}

type dashboard struct {
	UID, Title    string
	SchemaVersion int
	Panels        []panel
	Annotations   struct {
		List []struct {
			Name, Expr string
			Datasource datasource
		}
	}
	Templating struct {
		List []struct {
			Name, Type string
			Datasource datasource
			Definition string
		}
	}
}

func readDashboard(t *testing.T) (d dashboard) {
	t.Helper()
	if err := json.Unmarshal([]byte(text(t, "grafana/reconciler.json")), &d); err != nil {
		t.Fatal(err)
	}
	if len(d.Panels) < 20 {
		t.Fatalf("only %d panels were read", len(d.Panels))
	}
	return d
}

var ofVariable = datasource{Type: "prometheus", UID: "${datasource}"}

func TestEveryPanelIsDescribedAndAsksTheChosenDataSource(t *testing.T) {
	t.Parallel()
	ids := map[int]string{}
	for _, p := range readDashboard(t).Panels {
		if other, taken := ids[p.ID]; taken || p.ID == 0 {
			t.Errorf("%q has the id %d, as %q", p.Title, p.ID, other)
		}
		ids[p.ID] = p.Title
		if p.Type == "row" {
			continue
		}
		if p.Title == "" || p.Description == "" || p.FieldConfig.Defaults.Unit == "" || len(p.Targets) == 0 {
			t.Errorf("panel %d %q lacks a title, a description, a unit or a query", p.ID, p.Title)
		}
		if p.Datasource != ofVariable {
			t.Errorf("panel %q asks %v", p.Title, p.Datasource)
		}
		for _, q := range p.Targets {
			if q.Datasource != ofVariable || q.RefID == "" {
				t.Errorf("query %q of panel %q asks %v", q.RefID, p.Title, q.Datasource)
			}
			if !strings.Contains(q.Expr, "$job") && !strings.HasPrefix(q.Expr, "count(ALERTS") {
				t.Errorf("query %q of panel %q leaves the variable job out", q.RefID, p.Title)
			}
			if strings.Contains(q.Expr, "tool)") && !strings.Contains(q.Expr, "$tool") {
				t.Errorf("query %q of panel %q leaves the variable tool out", q.RefID, p.Title)
			}
		}
	}
}

func TestPanelsDoNotCoverEachOther(t *testing.T) {
	t.Parallel()
	taken := map[[2]int]string{}
	for _, p := range readDashboard(t).Panels {
		if p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("%q ends outside", p.Title)
		}
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := taken[[2]int{x, y}]; other != "" {
					t.Fatalf("%q lies on %q", p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
	}
}

func TestTheDashboardHasItsRowsAndVariables(t *testing.T) {
	t.Parallel()
	d := readDashboard(t)
	var rows, variables []string
	for _, p := range d.Panels {
		if p.Type == "row" {
			rows = append(rows, p.Title)
		}
	}
	for _, a := range d.Annotations.List {
		if a.Expr != "" && a.Datasource != ofVariable {
			t.Errorf("annotation %s asks %v", a.Name, a.Datasource)
		}
	}
	for _, v := range d.Templating.List {
		variables = append(variables, v.Name)
		if v.Type == "query" && v.Datasource != ofVariable {
			t.Errorf("variable %s asks %v", v.Name, v.Datasource)
		}
	}
	if !slices.Equal(rows, []string{"Is it working", "Backlog", "Verdicts", "Downstreams", "Deliveries", "Archiving", "Database and process"}) {
		t.Errorf("rows are %q", rows)
	}
	if !slices.Equal(variables, []string{"datasource", "job", "tool"}) {
		t.Errorf("variables are %q", variables)
	}
}

func TestPanelsSpeakOfMetricsThatAreExported(t *testing.T) {
	t.Parallel()
	d, known := readDashboard(t), exported(t)
	for _, p := range d.Panels {
		for _, q := range p.Targets {
			check(t, "panel "+p.Title, q.Expr, known, nil) // not even of what rules record: it works without them
		}
	}
	for _, v := range d.Templating.List {
		check(t, "variable "+v.Name, v.Definition, known, nil)
	}
	for _, a := range d.Annotations.List {
		check(t, "annotation "+a.Name, a.Expr, known, nil)
	}
}
