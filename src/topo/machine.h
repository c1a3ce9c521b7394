/* Machine model: how fast one device of this machine computes.
 *
 * Strategies, stages and predicted step times use these rates. They decide between ways to split
 * the same work, so that the ratio of computing to communication matters more than each rate. */
#ifndef WEFTI_MACHINE_H
#define WEFTI_MACHINE_H

/* What limits an op, and therefore the rate that counts for it. */
typedef enum wefti_work {
    WEFTI_WORK_VECTOR,  /* elementwise ops, reductions, normalisation */
    WEFTI_WORK_PRODUCT, /* matrix products, convolutions, attention */
    WEFTI_WORKS
} wefti_work;

typedef struct wefti_machine {
    double vector_flops;     /* flop/s of WEFTI_WORK_VECTOR */
    double product_f32;      /* flop/s of WEFTI_WORK_PRODUCT with operands in f32 or f64 */
    double product_bf16;     /* flop/s of WEFTI_WORK_PRODUCT with all operands in bf16 */
    double bytes_per_second; /* of reading and writing operands */
    double start_seconds;    /* of starting a kernel: counts for small ops */
} wefti_machine;

/* Rates where nothing was measured: a server CPU of about ten cores. 1e11 flop/s is what such a CPU
 * reaches in products of f32, 1e10 B/s what a core copies; starting a kernel counts nothing, so
 * that a node split in n parts takes an n-th of its time. Source: round numbers, chosen so that
 * arithmetic breaks ties of communication and no more. */
extern const wefti_machine wefti_machine_assumed;

/* Seconds of one kernel that does so many floating-point operations and reads and writes so many
 * bytes. Arithmetic and memory traffic add up: they overlap in the best kernels only. `narrow`: all
 * operands of a product are bf16. */
double wefti_machine_seconds(const wefti_machine *machine, wefti_work work, int narrow,
                             double flops, double bytes);

#endif
