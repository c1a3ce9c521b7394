/* The same collectives as bench/comm.c, between processes, by an MPI library:
 *
 *   mpicc -O3 bench/peers/mpi_allreduce.c -o mpi_allreduce
 *   mpirun -np 2 --bind-to core ./mpi_allreduce [rounds [bytes]]
 *
 * Sums of f32, and all-gathers of equal parts, of 8 bytes to 64 MiB in all. A figure is the fastest
 * of the rounds (40 by default), each of as many calls in a row as in bench/comm.c. "in_place" uses
 * MPI_IN_PLACE. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum work { ALL_REDUCE, IN_PLACE, ALL_GATHER, WORKS } work;
static const char *const names[] = {"all_reduce", "in_place", "all_gather"};

static void do_work(work w, const void *from, void *to, int count, int parts) {
    if (w == ALL_GATHER)
        MPI_Allgather(from, count / parts, MPI_FLOAT, to, count / parts, MPI_FLOAT, MPI_COMM_WORLD);
    else
        MPI_Allreduce(w == IN_PLACE ? MPI_IN_PLACE : from, to, count, MPI_FLOAT, MPI_SUM,
                      MPI_COMM_WORLD);
}

static double fastest(work w, int rounds, int repeats, const void *from, void *to, int count,
                      int parts) {
    double best = 1e9;
    for (int round = 0; round < rounds; round++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double start = MPI_Wtime();
        for (int i = 0; i < repeats; i++) do_work(w, from, to, count, parts);
        double seconds = (MPI_Wtime() - start) / repeats;
        if (seconds < best) best = seconds;
    }
    return best;
}

static void measure(long long size, int rounds, int rank, int parts) {
    float *a = aligned_alloc(4096, (size_t)(size + 4095) / 4096 * 4096);
    float *b = aligned_alloc(4096, (size_t)(size + 4095) / 4096 * 4096);
    if (!a || !b) MPI_Abort(MPI_COMM_WORLD, 1);
    memset(a, 0, (size_t)size);
    memset(b, 0, (size_t)size);
    int repeats = (int)((16 << 20) / (size + 16384)) + 1, count = (int)(size / 4);
    for (work w = 0; w < WORKS; w++) {
        if (w == ALL_GATHER && count % parts != 0) continue;
        double seconds = fastest(w, rounds, repeats, a, b, count, parts);
        if (rank == 0) printf("%s %lld %.9f\n", names[w], size, seconds);
    }
    free(a);
    free(b);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    static const long long sizes[] = {8,     64,     512,     1024,    4096,     16384,
                                      65536, 262144, 1 << 20, 4 << 20, 16 << 20, 64 << 20};
    int rank, parts, rounds = argc > 1 ? atoi(argv[1]) : 40;
    long long only = argc > 2 ? atoll(argv[2]) : 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &parts);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes && !only; i++)
        measure(sizes[i], rounds, rank, parts);
    if (only) measure(only, rounds, rank, parts);
    MPI_Finalize();
    return 0;
}
