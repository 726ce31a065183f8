/* A program that keeps an LMDB database open, for readersfirst_test.go.
 *
 *   lmdb read|write FILE     answers each line of its input by one line:
 *   put N BYTES              puts N with that many bytes, and says "put"
 *   count                    says how many there are, and the sum of the first bytes of all
 *   end, begin               a transaction for "count" that stays open from one line to the next
 */
#include <lmdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(int rc, const char *what) {
  if (rc == 0) return;
  printf("%s: %s\n", what, mdb_strerror(rc));
  exit(1);
}

static void put(MDB_env *env, unsigned n, size_t bytes) {
  MDB_txn *txn;
  MDB_dbi dbi;
  MDB_val key = {sizeof n, &n}, value = {bytes, malloc(bytes)};
  memset(value.mv_data, (int)(n % 251), bytes);
  check(mdb_txn_begin(env, NULL, 0, &txn), "begin");
  check(mdb_dbi_open(txn, NULL, 0, &dbi), "open");
  check(mdb_put(txn, dbi, &key, &value, 0), "put");
  check(mdb_txn_commit(txn), "commit");
  free(value.mv_data);
  puts("put");
}

static void count(MDB_txn *txn) {
  MDB_dbi dbi;
  MDB_cursor *cursor;
  MDB_val key, value;
  unsigned long rows = 0, sum = 0;
  check(mdb_dbi_open(txn, NULL, 0, &dbi), "open");
  check(mdb_cursor_open(txn, dbi, &cursor), "cursor");
  while (mdb_cursor_get(cursor, &key, &value, MDB_NEXT) == 0) {
    const unsigned char *p = value.mv_data;
    for (size_t i = 1; i < value.mv_size; i++)
      if (p[i] != p[0]) check(MDB_CORRUPTED, "value");
    rows++;
    sum += p[0];
  }
  mdb_cursor_close(cursor);
  printf("%lu %lu\n", rows, sum);
}

int main(int argc, char **argv) {
  MDB_env *env;
  MDB_txn *txn = NULL;
  char line[200];
  unsigned n;
  size_t bytes;
  if (argc != 3) return 2;
  setvbuf(stdout, NULL, _IOLBF, 0);
  check(mdb_env_create(&env), "create");
  check(mdb_env_set_mapsize(env, 64 << 20), "size");
  check(mdb_env_open(env, argv[2], MDB_NOSUBDIR | (strcmp(argv[1], "read") ? 0 : MDB_RDONLY), 0644), "open");
  while (fgets(line, sizeof line, stdin)) {
    if (sscanf(line, "put %u %zu", &n, &bytes) == 2) {
      put(env, n, bytes);
    } else if (!strcmp(line, "begin\n")) {
      check(mdb_txn_begin(env, NULL, MDB_RDONLY, &txn), "begin");
      puts("begin");
    } else if (!strcmp(line, "end\n")) {
      mdb_txn_abort(txn);
      txn = NULL;
      puts("end");
    } else if (txn) {
      count(txn);
    } else {
      check(mdb_txn_begin(env, NULL, MDB_RDONLY, &txn), "begin");
      count(txn);
      mdb_txn_abort(txn);
      txn = NULL;
    }
  }
  mdb_env_close(env);
  return 0;
}
