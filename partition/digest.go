package partition

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/big"
	"math/bits"

	"github.com/jmoiron/sqlx"
)

// digest counts lines and sums up their hashes, in any order: the first eight bytes of the SHA-256 of each, as a signed big-endian
// number. The sum has 128 bits, which the int64 of the count cannot exhaust.
type digest struct {
	rows int64
	high int64
	low  uint64
}

func (d *digest) add(hash int64) {
	var carry uint64
	d.low, carry = bits.Add64(d.low, uint64(hash), 0)
	d.high += hash>>63 + int64(carry)
	d.rows++
}

// addSum adds a line by its SHA-256.
func (d *digest) addSum(sha256 []byte) { d.add(int64(binary.BigEndian.Uint64(sha256))) }

// String is the sum as a decimal number.
func (d *digest) String() string {
	sum := new(big.Int).Lsh(big.NewInt(d.high), 64)
	return sum.Add(sum, new(big.Int).SetUint64(d.low)).String()
}

// digestOf is the digest of a table. The server makes the lines and their hashes, in the transaction of q, which must be exact; relation
// is a name as SQL. The hashes are summed up here, so that answers keep coming however large the table is: a connection on which
// nothing comes for longer than statement_timeout is given up.
func digestOf(ctx context.Context, q sqlx.QueryerContext, relation string, cols []Column) (rows int64, sum string, err error) {
	hashes, err := q.QueryxContext(ctx, `SELECT ('x' || encode(substr(sha256(convert_to(line::text, 'UTF8')), 1, 8), 'hex'))::bit(64)::bigint
		FROM (`+linesOf(relation, cols)+`) l`)
	if err != nil {
		return 0, "", fmt.Errorf("computing the digest of %s: %w", relation, err)
	}
	defer func() { _ = hashes.Close() }()
	var d digest
	for hashes.Next() {
		var hash int64
		if err := hashes.Scan(&hash); err != nil {
			return 0, "", fmt.Errorf("computing the digest of %s: %w", relation, err)
		}
		d.add(hash)
	}
	if err := hashes.Err(); err != nil {
		return 0, "", fmt.Errorf("computing the digest of %s: %w", relation, err)
	}
	return d.rows, d.String(), nil
}
