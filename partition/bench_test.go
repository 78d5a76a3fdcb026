package partition

import (
	"bufio"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/internal/testdb"
	"github.com/callreceipt/reconciler/migrations"
)

// The size of the benchmark; without it there is none:
//
//	go test ./partition -run '^$' -bench Export -bench-rows 1000000
var benchRows = flag.Int("bench-rows", 0, "rows of the partition that the benchmark exports")

const benchRounds = 5

// BenchmarkExport compares an export, which computes a digest and is safe on disk when it ends, with psql and zstd in a pipe over the same
// table. Rounds of the two alternate; the ratio is the median of what pairs of rounds have. The memory is the greatest VmRSS of this
// process while it exports, the Go runtime and the tests in it, and without the server.
func BenchmarkExport(b *testing.B) {
	if *benchRows == 0 {
		b.Skip("no -bench-rows")
	}
	url := testdb.URL(b, migrations.Downstream)
	db := testdb.Open(b, url)
	src := manyKeys(b, db, *benchRows)
	psql, err := psqlOf(db)
	if err != nil {
		b.Log("there is nothing to compare with: ", err)
	}
	var ours, theirs, ratios []float64
	var peak int64
	var bytes int64
	for b.Loop() {
		for range benchRounds {
			dir := b.TempDir()
			began := time.Now()
			m, err := export(b.Context(), db, src, dir, func(int64) { peak = max(peak, residentBytes(b)) })
			if err != nil {
				b.Fatal(err)
			}
			if m.Rows != int64(*benchRows) {
				b.Fatalf("%d rows were exported", m.Rows)
			}
			bytes = m.Bytes
			ours = append(ours, float64(m.Rows)/time.Since(began).Seconds())
			if psql == "" {
				continue
			}
			began = time.Now()
			dump(b, psql, url, filepath.Join(dir, "dump.zst"))
			theirs = append(theirs, float64(*benchRows)/time.Since(began).Seconds())
			ratios = append(ratios, ours[len(ours)-1]/theirs[len(theirs)-1])
		}
	}
	median := func(of []float64) float64 {
		if len(of) == 0 {
			return 0
		}
		slices.Sort(of)
		return of[len(of)/2]
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(ours), "rows/s")
	b.ReportMetric(median(theirs), "psql-rows/s")
	b.ReportMetric(median(ratios), "ratio")
	b.ReportMetric(float64(peak)/(1<<20), "peak-MiB")
	b.ReportMetric(float64(bytes)/float64(*benchRows), "bytes/row")
}

// manyKeys makes a partition of idempotency.keys with so many rows.
func manyKeys(b *testing.B, db *sqlx.DB, rows int) source {
	b.Helper()
	db.MustExec(`CREATE TABLE idempotency.keys_20240501 PARTITION OF idempotency.keys FOR VALUES FROM ('2024-05-01 00:00+00') TO ('2024-05-02 00:00+00')`)
	db.MustExec(`INSERT INTO idempotency.keys SELECT 'ORD-' || n || ':charge', 'ORD-' || n, 'charge', 'ORD-' || n || '-0001', 1, 'SUCCESS',
			json_build_object('ref', 'ch_' || md5(n::text), 'amount', n % 100000), sha256(int4send(n)), at, at, at + interval '73 ms', at + interval '7 days'
		FROM generate_series(1, $1) n, LATERAL (SELECT '2024-05-01 00:00+00'::timestamptz + n * interval '1 day' / ($1 + 1) AS at) a`, rows)
	db.MustExec(`VACUUM ANALYZE idempotency.keys_20240501`)
	src := sourceOf(b, db, "idempotency.keys_20240501", "idempotency.keys")
	src.Key = []string{"created_at"}
	return src
}

// psqlOf finds psql on the PATH, or beside the server.
func psqlOf(db *sqlx.DB) (string, error) {
	if _, err := exec.LookPath("zstd"); err != nil {
		return "", err
	}
	path, err := exec.LookPath("psql")
	if err == nil {
		return path, nil
	}
	var bin string
	if err := db.Get(&bin, `SELECT setting FROM pg_config WHERE name = 'BINDIR'`); err != nil {
		return "", err
	}
	return exec.LookPath(filepath.Join(bin, "psql"))
}

// dump runs psql | zstd.
func dump(b *testing.B, psql, url, file string) {
	b.Helper()
	read, write, err := os.Pipe()
	if err != nil {
		b.Fatal(err)
	}
	from := exec.CommandContext(b.Context(), psql, "-XAt", "-c", "COPY (SELECT row_to_json(t) FROM idempotency.keys_20240501 t) TO STDOUT", url)
	from.Stdout, from.Stderr = write, os.Stderr
	to := exec.CommandContext(b.Context(), "zstd", "-q", "-o", file)
	to.Stdin, to.Stderr = read, os.Stderr
	if err := errors.Join(from.Start(), to.Start(), write.Close(), read.Close(), from.Wait(), to.Wait()); err != nil {
		b.Fatal(err)
	}
}

func residentBytes(b *testing.B) int64 {
	b.Helper()
	f, err := os.Open("/proc/self/status")
	if err != nil {
		return 0 // not on Linux
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if size, ok := strings.CutPrefix(lines.Text(), "VmRSS:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(size), " kB"), 10, 64)
			if err != nil {
				b.Fatal(err)
			}
			return kib << 10
		}
	}
	return 0
}
