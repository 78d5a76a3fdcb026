package receipt

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
)

// BenchmarkDecode decodes the answer to a batch of 200 bizIds, and for comparison lets encoding/json fill structs
// from the same bytes, which checks next to nothing.
func BenchmarkDecode(b *testing.B) {
	const calls = 200
	body, asked := typicalAnswer(calls)

	var strict, lax time.Duration
	b.Run("strict", func(b *testing.B) {
		b.SetBytes(int64(len(body)))
		b.ReportAllocs()
		for b.Loop() {
			a, err := Decode(body, asked, Limits{})
			if err != nil || len(a.Of) != calls {
				b.Fatal(len(a.Of), err)
			}
		}
		strict = b.Elapsed() / time.Duration(b.N)
		b.ReportMetric(calls/strict.Seconds(), "receipts/s")
		b.ReportMetric(float64(strict.Nanoseconds())/calls, "ns/receipt")
	})
	b.Run("encoding-json", func(b *testing.B) {
		b.SetBytes(int64(len(body)))
		b.ReportAllocs()
		for b.Loop() {
			var into struct {
				Receipts []struct {
					CallID, BizID, Operation, IdempotencyKey, Status string
					Result                                           json.RawMessage
					ProcessedAt                                      time.Time
					Attempt                                          int
				}
			}
			if err := json.Unmarshal(body, &into); err != nil || len(into.Receipts) != calls {
				b.Fatal(len(into.Receipts), err)
			}
		}
		lax = b.Elapsed() / time.Duration(b.N)
		b.ReportMetric(calls/lax.Seconds(), "receipts/s")
		b.ReportMetric(float64(lax)/float64(strict), "times-strict")
	})
}

func typicalAnswer(calls int) (body []byte, asked []string) {
	var items []string
	for i := range calls {
		biz := fmt.Sprintf("ORD20240501-%06d", i)
		asked = append(asked, biz)
		items = append(items, fmt.Sprintf(`{"callId":"%[1]s-0001","bizId":"%[1]s","operation":"charge",`+
			`"idempotencyKey":"%[1]s:charge","status":"SUCCESS","result":{"ref":"ch_%06d","amount":1250},`+
			`"processedAt":"2024-05-01T10:00:00Z","attempt":1}`, biz, i))
	}
	return []byte(`{"receipts":[` + strings.Join(items, ",") + `]}`), asked
}
