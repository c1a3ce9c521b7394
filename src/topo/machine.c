/* The machine model: see machine.h. */
#include "topo/machine.h"

const wefti_machine wefti_machine_assumed = {.vector_flops = 1e11,
                                             .product_f32 = 1e11,
                                             .product_bf16 = 1e11,
                                             .bytes_per_second = 1e10,
                                             .start_seconds = 0};

int wefti_machines_equal(const wefti_machine *a, const wefti_machine *b) {
#define SAME_RATE(name, least) (a->name == b->name) &&
    return WEFTI_MACHINE_RATES(SAME_RATE) 1;
#undef SAME_RATE
}

double wefti_machine_seconds(const wefti_machine *machine, wefti_work work, int narrow,
                             double flops, double bytes) {
    double rate = machine->vector_flops;
    if (work == WEFTI_WORK_PRODUCT) rate = narrow ? machine->product_bf16 : machine->product_f32;
    return machine->start_seconds + flops / rate + bytes / machine->bytes_per_second;
}
