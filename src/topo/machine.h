/* Machine model: how fast one device of this machine computes.
 *
 * Strategies, stages and predicted step times use these rates. They decide between ways to split
 * the same work, so that the ratio of computing to communication matters more than each rate. */
#ifndef WEFTI_MACHINE_H
#define WEFTI_MACHINE_H

/* The limit of an op, which decides which rate counts for it. */
typedef enum wefti_work {
    WEFTI_WORK_VECTOR,  /* elementwise ops, reductions, normalization */
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

/* The fields, and the least value of each. */
#define WEFTI_MACHINE_RATES(X)                                                                     \
    X(vector_flops, 1)                                                                             \
    X(product_f32, 1) X(product_bf16, 1) X(bytes_per_second, 1) X(start_seconds, 0)
int wefti_machines_equal(const wefti_machine *a, const wefti_machine *b);

/* Rates that are used if nothing was measured: a server CPU of about ten cores. Such a CPU reaches
 * 1e11 flop/s in products of f32, and a core copies 1e10 B/s. Starting a kernel costs nothing, so a
 * node split into n parts takes 1/n of its time. Source: round numbers, chosen so that arithmetic
 * only decides between equal communication. */
extern const wefti_machine wefti_machine_assumed;

/* Seconds of one kernel, given its number of floating-point operations and of bytes read and
 * written. The times of arithmetic and memory traffic are added, since they overlap only in the
 * best kernels. `narrow`: all operands of a product are bf16. */
double wefti_machine_seconds(const wefti_machine *machine, wefti_work work, int narrow,
                             double flops, double bytes);

#endif
