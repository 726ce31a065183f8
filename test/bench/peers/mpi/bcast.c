// Times MPI_Bcast of messages from rank 0, memory to memory, and prints one line of JSON:
//
//   bcast BYTES ROUNDS
//
// A round is timed at rank 0, from a barrier until every rank has the message, which rank 0 learns by MPI_Gather of one
// byte each: as the root of an rdmc group learns it by acknowledgements. The bytes are compared at the end.
#include <limits.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

static double cpu_seconds(void) {
  struct rusage u;
  getrusage(RUSAGE_SELF, &u);
  return u.ru_utime.tv_sec + u.ru_stime.tv_sec + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

// pattern is the byte at a place; its period of 251 fits no block size.
static char pattern(size_t i) { return (char)(i % 251 + 1); }

static int wrong(const char *data, size_t bytes) {
  for (size_t i = 0; i < bytes; i++)
    if (data[i] != pattern(i)) return 1;
  return 0;
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  int rank, ranks;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (argc != 3) {
    fprintf(stderr, "usage: bcast BYTES ROUNDS\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  size_t bytes = strtoull(argv[1], NULL, 10);
  int rounds = atoi(argv[2]);
  char *data = malloc(bytes), *acks = malloc(ranks), ack = 0;
  if (!data || !acks || rounds < 1 || bytes > INT_MAX) MPI_Abort(MPI_COMM_WORLD, 2);
  memset(data, 0, bytes);
  for (size_t i = 0; rank == 0 && i < bytes; i++) data[i] = pattern(i);

  // Open MPI connects two processes when they first talk. That is not to be timed.
  char *from = calloc(ranks, 1), *to = calloc(ranks, 1);
  MPI_Alltoall(from, 1, MPI_BYTE, to, 1, MPI_BYTE, MPI_COMM_WORLD);

  if (rank == 0) printf("{\"seconds\":[");
  double cpu = 0;
  for (int round = 0; round < rounds; round++) {
    MPI_Barrier(MPI_COMM_WORLD);
    double cpu_before = cpu_seconds(), start = MPI_Wtime();
    MPI_Bcast(data, (int)bytes, MPI_BYTE, 0, MPI_COMM_WORLD);
    MPI_Gather(&ack, 1, MPI_BYTE, acks, 1, MPI_BYTE, 0, MPI_COMM_WORLD);
    cpu += cpu_seconds() - cpu_before;
    if (rank == 0) printf("%s%.6f", round ? "," : "", MPI_Wtime() - start);
  }
  double all_cpu = 0;
  int bad = wrong(data, bytes), all_bad = 0;
  MPI_Reduce(&cpu, &all_cpu, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
  MPI_Reduce(&bad, &all_bad, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
  if (rank == 0) printf("],\"cpu_seconds\":%.6f,\"wrong\":%d}\n", all_cpu, all_bad);
  MPI_Finalize();
  return 0;
}
