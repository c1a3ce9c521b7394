/* Convolutions: the reference backend runs what no kernel here takes. */
#include "backend/cpu/cpu.h"

weft_status wefti_cpu_conv(const weft_node *n, const wefti_prepare *options, wefti_kernel **out) {
    (void)n;
    (void)options;
    (void)out;
    return WEFT_E_NO_IMPL;
}
weft_status wefti_cpu_conv_grad_input(const weft_node *n, const wefti_prepare *options,
                                      wefti_kernel **out) {
    return wefti_cpu_conv(n, options, out);
}
weft_status wefti_cpu_conv_grad_weight(const weft_node *n, const wefti_prepare *options,
                                       wefti_kernel **out) {
    return wefti_cpu_conv(n, options, out);
}
