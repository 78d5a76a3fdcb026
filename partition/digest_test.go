package partition

import (
	"math/big"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestTheDigestIsASumInAnyOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		hashes := rapid.SliceOf(rapid.OneOf(rapid.Int64(), rapid.SampledFrom([]int64{-1 << 63, 1<<63 - 1, 0, -1}))).Draw(t, "hashes")
		want := new(big.Int)
		var there, back digest
		for _, h := range hashes {
			want.Add(want, big.NewInt(h))
			there.add(h)
		}
		for _, h := range slices.Backward(hashes) {
			back.add(h)
		}
		if there.String() != want.String() || back != there || there.rows != int64(len(hashes)) {
			t.Fatalf("%s in %d and %s in %d, not %s", there.String(), there.rows, back.String(), back.rows, want)
		}
	})
}
