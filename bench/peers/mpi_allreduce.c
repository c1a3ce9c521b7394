/* The same all-reduces as bench/comm.c, between two processes, by an MPI library.
 *
 *   mpicc -O3 bench/peers/mpi_allreduce.c -o mpi_allreduce
 *   mpirun -np 2 --bind-to core ./mpi_allreduce [rounds [bytes]]
 *
 * Sums of f32 from 1 KiB to 64 MiB; a figure is the fastest of the rounds (40 unless given), each
 * of as many calls in a row as in bench/comm.c. "in_place" is with MPI_IN_PLACE. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double fastest(int rounds, int repeats, const void *from, void *to, int count) {
    double best = 1e9;
    for (int round = 0; round < rounds; round++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double start = MPI_Wtime();
        for (int i = 0; i < repeats; i++)
            MPI_Allreduce(from, to, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        double seconds = (MPI_Wtime() - start) / repeats;
        if (seconds < best) best = seconds;
    }
    return best;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, rounds = argc > 1 ? atoi(argv[1]) : 40;
    long long only = argc > 2 ? atoll(argv[2]) : 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (long long size = only ? only : 1024; size <= (only ? only : 64 << 20); size *= 4) {
        float *a = aligned_alloc(4096, (size_t)size), *b = aligned_alloc(4096, (size_t)size);
        if (!a || !b) MPI_Abort(MPI_COMM_WORLD, 1);
        memset(a, 0, (size_t)size);
        memset(b, 0, (size_t)size);
        int repeats = (int)((16 << 20) / (size + 16384)) + 1, count = (int)(size / 4);
        double apart = fastest(rounds, repeats, a, b, count);
        double in_place = fastest(rounds, repeats, MPI_IN_PLACE, b, count);
        if (rank == 0)
            printf("all_reduce %lld %.9f\nin_place %lld %.9f\n", size, apart, size, in_place);
        free(a);
        free(b);
    }
    MPI_Finalize();
    return 0;
}
