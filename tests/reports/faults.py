"""Every planted fault of the table of reports, in the order of its sections."""

from tests.reports import faults_a, faults_b, faults_d, faults_e, faults_f, faults_g, faults_h

FAULTS = [
    *faults_a.FAULTS,
    *faults_b.FAULTS,
    *faults_d.FAULTS,
    *faults_e.FAULTS,
    *faults_f.FAULTS,
    *faults_g.FAULTS,
    *faults_h.FAULTS,
]
